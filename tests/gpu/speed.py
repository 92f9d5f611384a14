"""Speed: training steps and sampling, with the fraction of the device's peak rate (MFU) and memory bandwidth (MBU)

References are numbers that other projects publish for the same work, on one H100 unless a note says otherwise. They are
quoted for scale; the hardware is another one.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from kit import SIMULATED, Case, Outcome, Target
from memory_cases import build
from scale import (
    PEAK_BF16_FLOPS,
    PEAK_BYTES_PER_S,
    decoding_bytes_per_step,
    peak,
    shape,
    training_flops_per_token,
)
from torch import Tensor, nn

from rlhf_lab.losses.policy import ClipRange, PolicyTokens, ppo_clip
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.models.lora import add_adapter
from rlhf_lab.models.settings import LoRA
from rlhf_lab.models.sharded import checkpoint_blocks
from rlhf_lab.models.weights import store
from rlhf_lab.sampling.local import LocalSampler
from rlhf_lab.sampling.settings import Local
from rlhf_lab.training.optim import Optimizers, TrainedPart
from rlhf_lab.training.settings import TrainingSettings

SFT_8K = "prime-rl, Qwen3-0.6B, 8k tokens, one H100: 26.0k tokens/s, 16.8 % MFU"
TRAINER_16K = "prime-rl, trainer step, 16k tokens, one H100: 11.9k tokens/s"
LORA_16K = "prime-rl, 4B LoRA, 16k tokens, one H100: 6.2k tokens/s"
VLLM = "vLLM, 0.6B, one H100: 12.1k output tokens/s"
GRPO_STEP = "verl, 1,152 × 5 responses, two H200: 33.6 s per step; its model and lengths are not the ones here"


def cases(target: Target) -> list[Case]:
    """In the order of a reader's questions: training, sampling, a full step."""
    return [
        Case("sft-0.6b-8k", lambda: sft(target, "0.6b", 8192, SFT_8K), 40),
        Case("trainer-0.6b-16k", lambda: trainer(target, "0.6b", 16384), 50),
        Case("lora-4b-16k", lambda: sft(target, "4b", 16384, LORA_16K, adapter=True), 70, ("peft",)),
        Case("sampler-0.6b", lambda: sampler(target, "0.6b"), 60),
        Case("generate-0.6b", lambda: generate(target, "0.6b"), 90),
        Case("vllm-0.6b", lambda: vllm(target, "0.6b"), 120, ("vllm",), real_gpu=True),
        Case("grpo-step-0.6b", lambda: grpo_step(target, "0.6b"), 110),
    ]


# Training


def sft(target: Target, size: str, length: int, reference: str, *, adapter: bool = False) -> Outcome:
    """Next-token training on one row, in bfloat16 with checkpointed blocks."""
    model = policy(target, size, adapter=adapter)
    batch = row(target, size, length)

    def loss() -> Tensor:
        return -token_logps(model, batch).logps_N.mean()

    return training_speed(target, size, model, loss, batch, reference, adapter=adapter)


def trainer(target: Target, size: str, length: int) -> Outcome:
    """A policy update: clipped loss (arXiv:1707.06347, eq. 7) on the sampled tokens of one long row."""
    model = policy(target, size)
    batch = row(target, size, length)
    with torch.no_grad(), torch.autocast(target.device, dtype=torch.bfloat16):
        old = token_logps(model, batch)
    advantage = torch.ones_like(old.logps_N)

    def loss() -> Tensor:
        logps = token_logps(model, batch)
        tokens = PolicyTokens(logps.logps_N, old.logps_N, advantage, logps.row_N, 1)
        return ppo_clip(tokens, ClipRange(0.2, 0.2)).per_token.mean()

    return training_speed(target, size, model, loss, batch, TRAINER_16K)


def training_speed(
    target: Target,
    size: str,
    model: nn.Module,
    loss: Callable[[], Tensor],
    batch: TokenBatch,
    reference: str,
    *,
    adapter: bool = False,
) -> Outcome:
    """Median over steps of forward, backward, clipping and AdamW; the first two steps are not timed."""
    settings = TrainingSettings(optimizer="adamw", lr=1e-5)
    optimizers = Optimizers({"model": TrainedPart(model, 1e-5)}, settings)
    tokens = sum(batch.lengths)
    undo = checkpoint_blocks(model)
    seconds = []
    try:
        for step in range(2 + (2 if target.tiny else 8)):
            start = time.perf_counter()
            with torch.autocast(target.device, dtype=torch.bfloat16):
                value = loss()
            value.backward()
            optimizers.clip()
            optimizers.step(1.0)
            synchronize(target)
            if step >= 2:
                seconds.append(time.perf_counter() - start)
    finally:
        undo()
    median = statistics.median(seconds)
    values = {"tokens_per_s": tokens / median, "step_s": median}
    flops = training_flops_per_token(shape(size, target.tiny), tokens, adapter=adapter)
    if (rate := peak(PEAK_BF16_FLOPS)) is not None:
        values["mfu"] = tokens * flops / median / rate
    if target.is_real_gpu:
        values["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return Outcome(values, None, reference)


# Sampling


def sampler(target: Target, size: str) -> Outcome:
    """Output tokens per second of the lab's sampler: 64 prompts × 8 responses."""
    model = policy(target, size, frozen=True)
    prompts, group, new = workload(target)
    local = LocalSampler(Local(max_new_tokens=new, max_prompt_tokens=256, dtype="bfloat16"), [-1])
    seconds = timed(target, lambda: local.sample(model, prompts, group, 1))
    values = {"output_tokens_per_s": len(prompts) * group * new / seconds, "s": seconds}
    if (bandwidth := peak(PEAK_BYTES_PER_S)) is not None:
        length = len(prompts[0]) + new / 2
        needed = new * decoding_bytes_per_step(shape(size, target.tiny), len(prompts) * group, length)
        values["mbu"] = needed / seconds / bandwidth
    return Outcome(values, None, VLLM)


def generate(target: Target, size: str) -> Outcome:
    """The same work by Hugging Face `generate`."""
    model: Any = policy(target, size, frozen=True)
    prompts, group, new = workload(target)
    ids = torch.tensor([prompt for prompt in prompts for _ in range(group)], device=target.device)

    def run() -> None:
        with torch.autocast(target.device, dtype=torch.bfloat16):
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new,
                do_sample=True,
                top_k=0,
                pad_token_id=0,
            )

    seconds = timed(target, run)
    return Outcome(
        {"output_tokens_per_s": ids.shape[0] * new / seconds, "s": seconds}, None, "same prompts and lengths"
    )


def vllm(target: Target, size: str) -> Outcome:
    """The same work by vLLM, in this process, from a directory with the same random weights."""
    from vllm import LLM, SamplingParams

    directory = target.scratch / f"model-{size}"
    if not directory.exists():
        build(shape(size, target.tiny), device=target.device).bfloat16().save_pretrained(directory)
    llm = LLM(str(directory), skip_tokenizer_init=True, gpu_memory_utilization=0.5)
    prompts, group, new = workload(target)
    params = SamplingParams(n=group, max_tokens=new, ignore_eos=True, detokenize=False)
    requested = [{"prompt_token_ids": prompt} for prompt in prompts]
    seconds = timed(target, lambda: llm.generate(requested, params))
    return Outcome({"output_tokens_per_s": len(prompts) * group * new / seconds, "s": seconds}, None, VLLM)


# Full step


def grpo_step(target: Target, size: str) -> Outcome:
    """One GRPO step through the lab's own stage: sample, score, reference, update."""
    import policy as bench
    from policy import _algorithm, _stepper

    from rlhf_lab.config import registry

    prompts, group = (4, 2) if target.tiny else (1152, 5)
    directory = target.scratch / f"grpo-{size}"
    write_folder(target, directory, size, prompts)
    bench.scale.device = "auto" if target.device == SIMULATED else target.device
    bench.scale.bfloat16 = True
    registry.register("reward", "bench", implementation="policy")(bench.BenchReward)
    algorithm = _algorithm(
        directory,
        "grpo",
        f"algorithm.prompts_per_iteration={prompts}",
        f"algorithm.group_size={group}",
        f"algorithm.batch_size={prompts * group}",
        "algorithm.iterations=100000",
        f"algorithm.max_length={64 if target.tiny else 512}",
        f"rollout.max_new_tokens={8 if target.tiny else 256}",
        "algorithm.micro_batch_tokens=16384",
    )
    step = _stepper(algorithm)
    step()
    before, start = algorithm.generated, time.perf_counter()
    step()
    synchronize(target)
    seconds = time.perf_counter() - start
    tokens = algorithm.generated - before
    return Outcome(
        {"step_s": seconds, "output_tokens_per_s": tokens / seconds, "responses": prompts * group}, None, GRPO_STEP
    )


def write_folder(target: Target, directory: Any, size: str, prompts: int) -> None:
    """A model with random weights, a tokenizer of its vocabulary and a corpus of prompts."""
    import numpy as np
    from training import tokenizer_of

    if (directory / "pairs.jsonl").exists():
        return
    model = shape(size, target.tiny)
    build(model, device=target.device).save_pretrained(directory / "model")
    tokenizer_of(model.vocabulary).save_pretrained(directory / "model")
    rng = np.random.default_rng(0)
    with (directory / "pairs.jsonl").open("w") as file:
        for _ in range(2 * prompts + 64):
            prompt = " ".join(f"w{i}" for i in rng.integers(3, model.vocabulary, 20 if target.tiny else 90))
            file.write(
                json.dumps({"prompt": f"\n\nHuman: {prompt}\n\nAssistant:", "chosen": "w5 w6", "rejected": "w7"}) + "\n"
            )


# Models, rows, clocks


def policy(target: Target, size: str, *, adapter: bool = False, frozen: bool = False) -> Any:
    model = build(shape(size, target.tiny), device=target.device)
    if adapter:
        model = add_adapter(store(model, "bfloat16", target.device), LoRA(rank=16), 0).to(target.device)
    if frozen:
        model.requires_grad_(False)
    return model


def row(target: Target, size: str, length: int) -> TokenBatch:
    """One row of random tokens, of which all but the first are trained on."""
    length = 64 if target.tiny else length
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, shape(size, target.tiny).vocabulary - 5, (length,), generator=generator).tolist()
    return TokenBatch.from_rows([(ids[:1], ids[1:])], target.device)


def workload(target: Target) -> tuple[list[list[int]], int, int]:
    """Prompts, responses per prompt and tokens of a response; no response ends early."""
    count, length, group, new = (2, 8, 2, 8) if target.tiny else (64, 128, 8, 256)
    generator = torch.Generator().manual_seed(0)
    return torch.randint(5, 400, (count, length), generator=generator).tolist(), group, new


def timed(target: Target, work: Callable[[], object]) -> float:
    """Median seconds of three runs after one that is not timed."""
    seconds = []
    for turn in range(2 if target.tiny else 4):
        start = time.perf_counter()
        with torch.no_grad():
            work()
        synchronize(target)
        if turn:
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def synchronize(target: Target) -> None:
    if target.is_real_gpu:
        torch.cuda.synchronize()
