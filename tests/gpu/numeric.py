"""Numbers on the device against float64 on the CPU: log-probabilities, gradients, KL, samples, four bits, 8-bit Adam.

Each bound was written down before the first run on a GPU. Float32 products round in another order on a GPU than on a
CPU. In bfloat16 the error grows with depth, so it is compared with the error of the same model in bfloat16 on the CPU.
"""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from families import random_model as family_model
from kit import ROOT, SIMULATED, Case, Outcome, Target
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import GPT2Config, LlamaConfig, Qwen3Config

from rlhf_lab.losses.preference import PairLogps, dpo
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import exact_kl, token_logps
from rlhf_lab.models.lora import add_adapter
from rlhf_lab.models.settings import LoRA
from rlhf_lab.models.shared_prompt import computed_as
from rlhf_lab.models.weights import numbers_of, store
from rlhf_lab.sampling.local import LocalSampler
from rlhf_lab.sampling.settings import Local
from rlhf_lab.training.optim import Optimizers, TrainedPart
from rlhf_lab.training.settings import TrainingSettings

VOCABULARY, EOS = 512, 1
BOUND_NATS = {"float32": 2e-4, "bfloat16": 0.15}
"""Largest mean error of a token's log-probability, in nats."""
BOUND_GRADIENT = 1e-3
"""Largest ‖gradient − reference‖ / ‖reference‖ over all parameters in float32."""
BOUND_ROUNDING = 1.5
"""Largest error in bfloat16 as a multiple of the error that bfloat16 makes on the CPU."""

KERNELS: dict[str, Any] = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def cases(target: Target) -> list[Case]:
    """All checks; on a CPU and at tiny size each takes a second or two."""
    found = [
        Case("doctor", lambda: doctor(target), 60),
        Case("tests-of-cuda", tests_of_cuda, 150, ("pytest",), real_gpu=True),
    ]

    def add(name: str, check: Callable[[], Outcome], expected_s: float = 6, **how: Any) -> None:
        found.append(Case(name, check, expected_s, **how))

    for family in ("gpt2", "llama", "qwen3"):
        for dtype in ("float32", "bfloat16"):
            add(f"logps-{family}-{dtype}", lambda f=family, d=dtype: logps(target, f, d))  # type: ignore[misc]
            add(f"gradient-{family}-{dtype}", lambda f=family, d=dtype: gradient(target, f, d))  # type: ignore[misc]
            add(f"samples-{family}-{dtype}", lambda f=family, d=dtype: samples(target, f, d))  # type: ignore[misc]
        add(f"greedy-{family}", lambda f=family: greedy(target, f))  # type: ignore[misc]
        add(f"kl-{family}", lambda f=family: kl(target, f))  # type: ignore[misc]
    for family in ("gemma2", "gemma3", "mixtral", "phi3"):
        if family == "mixtral" and target.device == SIMULATED:
            continue  # transformers counts tokens per expert in integers off the CPU, which the CPU behind it cannot
        add(f"logps-{family}-float32", lambda f=family: logps(target, f, "float32"))  # type: ignore[misc]
    for kernel in KERNELS:
        dtype = "bfloat16" if kernel == "flash" else "float32"
        real = kernel != "math"
        add(f"attention-{kernel}-{dtype}", lambda k=kernel, d=dtype: logps(target, "llama", d, k), real_gpu=real)  # type: ignore[misc]
    add(
        "attention-flash_attention_2-bfloat16",
        lambda: logps(target, "llama", "bfloat16", attention="flash_attention_2"),
        needs=("flash_attn",),
        real_gpu=True,
    )
    for way in ("whole rows", "two passes", "packed rows"):
        add(f"pass-{way.replace(' ', '-')}", lambda w=way: passes(target, w))  # type: ignore[misc]
    add("dpo-at-reference", lambda: dpo_at_reference(target))
    add("nf4-forward", lambda: nf4_forward(target), needs=("bitsandbytes",), real_gpu=True)
    add("nf4-adapter-gradient", lambda: nf4_gradient(target), needs=("bitsandbytes", "peft"), real_gpu=True)
    add("adamw-8bit", lambda: adamw_8bit(target), needs=("bitsandbytes",), real_gpu=True)
    return found


# Models and rows


def random_model(target: Target, family: str) -> Any:
    """A model whose logits differ by several nats: standard initialisation gives almost uniform distributions."""
    if family in ("gemma2", "gemma3", "mixtral", "phi3"):
        return family_model(family, vocab_size=VOCABULARY)
    hidden, layers, heads = (64, 2, 4) if target.tiny else (512, 8, 8)
    ids = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": EOS}
    config: Any
    if family == "gpt2":
        dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        config = GPT2Config(n_embd=hidden, n_layer=layers, n_head=heads, n_positions=512, **dropout, **ids)
    else:
        kind = Qwen3Config if family == "qwen3" else LlamaConfig
        config = kind(
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads // 2,
            head_dim=hidden // heads,
            intermediate_size=2 * hidden,
            max_position_embeddings=512,
            **ids,
        )
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 3.0 / parameter.shape[-1] ** 0.5 / layers**0.5)
    return model


def rows(target: Target) -> list[tuple[list[int], list[int]]]:
    """Prompts and responses of many lengths; every prompt stands in two rows, as in pairs and groups."""
    generator = torch.Generator().manual_seed(1)
    lengths = (3, 7, 12) if target.tiny else (5, 17, 33, 64, 90, 128)

    def ids(count: int) -> list[int]:
        return torch.randint(5, VOCABULARY, (count,), generator=generator).tolist()

    found = []
    for length in lengths:
        prompt = ids(length)
        found += [(prompt, [*ids(length + 2), EOS]), (prompt, [*ids(2 * length), EOS])]
    return found


def precision(device: str, dtype: str) -> torch.autocast:
    """Autocast to bfloat16; nothing in float32."""
    return torch.autocast(device, dtype=torch.bfloat16, enabled=dtype == "bfloat16")


def exact(model: Any) -> Any:
    """A copy in float64; in float32 where the model has experts, whose grouped products take no float64."""
    return copy.deepcopy(model) if getattr(model.config, "num_local_experts", 0) else copy.deepcopy(model).double()


def logps_on(model: Any, target: Target, device: str, dtype: str = "float32") -> Tensor:
    with torch.no_grad(), precision(device, dtype):
        return token_logps(model.to(device), TokenBatch.from_rows(rows(target), device)).logps_N.cpu().double()


def on_device(target: Target) -> TokenBatch:
    return TokenBatch.from_rows(rows(target), target.device)


# Checks


def doctor(target: Target) -> Outcome:
    """The product's own checks of installation, device and invariants of training."""
    words = target.command("doctor", "model=micro" if target.tiny else "model=tiny", "data=mini_hh_small")
    done = subprocess.run([*words, target.runtime], capture_output=True, text=True, cwd=target.scratch)
    last = [line for line in done.stdout.splitlines() if line.strip()][-1:] or [done.stderr[-300:]]
    return Outcome({"exit_status": done.returncode}, done.returncode == 0, last[0].strip())


def tests_of_cuda() -> Outcome:
    """The tests that need CUDA: whole stages on both devices, resume, samples."""
    command = [sys.executable, "-m", "pytest", "-q", "--tb=line", str(ROOT / "tests/numeric/test_cuda.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    lines = done.stdout.strip().splitlines()
    return Outcome({"exit_status": done.returncode}, done.returncode == 0, " ".join(lines[-4:])[-400:])


def logps(target: Target, family: str, dtype: str, kernel: str | None = None, attention: str = "sdpa") -> Outcome:
    model = random_model(target, family)
    expected = logps_on(exact(model), target, "cpu")
    rounding = (logps_on(copy.deepcopy(model), target, "cpu", dtype) - expected).abs().mean().item()
    if attention != "sdpa":
        model.set_attn_implementation(attention)
    chosen = sdpa_kernel(KERNELS[kernel]) if kernel else nullcontext()
    way: Any = computed_as("whole rows") if kernel or attention != "sdpa" else nullcontext()
    with chosen, way:
        error = (logps_on(model, target, target.device, dtype) - expected).abs()
    values = {"mean_error_nats": error.mean().item(), "max_error_nats": error.max().item(), "on_cpu_nats": rounding}
    if dtype == "float32":
        bound, text = BOUND_NATS[dtype], f"mean error of a token at most {BOUND_NATS[dtype]} nats"
    else:
        bound, text = (
            BOUND_ROUNDING * rounding,
            f"at most {BOUND_ROUNDING} times the error of bfloat16 on the CPU",
        )
    return Outcome(values, values["mean_error_nats"] <= bound, f"{text}; float64 on the CPU as reference")


def gradient(target: Target, family: str, dtype: str) -> Outcome:
    """Relative error of the gradient of the mean log-probability."""
    model = random_model(target, family)
    expected = gradient_on(exact(model), target, "cpu")
    rounding = distance(gradient_on(copy.deepcopy(model), target, "cpu", dtype), expected)
    error = distance(gradient_on(model, target, target.device, dtype), expected)
    if dtype == "float32":
        bound, text = BOUND_GRADIENT, f"at most {BOUND_GRADIENT} of the gradient's norm"
    else:
        bound, text = BOUND_ROUNDING * rounding, f"at most {BOUND_ROUNDING} times the error of bfloat16 on the CPU"
    values = {"relative_error": error, "on_cpu": rounding}
    return Outcome(values, error <= bound, f"{text}; float64 on the CPU as reference")


def gradient_on(model: Any, target: Target, device: str, dtype: str = "float32") -> Tensor:
    """All gradients in one vector, float64 on the CPU."""
    model = model.to(device)
    with precision(device, dtype):
        loss = token_logps(model, TokenBatch.from_rows(rows(target), device)).logps_N.mean()
    loss.backward()
    return torch.cat([p.grad.cpu().double().flatten() for p in model.parameters() if p.grad is not None])


def distance(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()


def kl(target: Target, family: str) -> Outcome:
    policy, reference = random_model(target, family), random_model(target, family)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(0.9)
        batch = TokenBatch.from_rows(rows(target))
        expected = exact_kl(copy.deepcopy(policy).double(), copy.deepcopy(reference).double(), batch)
        found = exact_kl(policy.to(target.device), reference.to(target.device), on_device(target)).cpu().double()
    error = ((found - expected).abs().max() / expected.abs().max()).item()
    return Outcome({"relative_error": error}, error <= 1e-3, "KL over the vocabulary, at most 0.001 of the largest")


def samples(target: Target, family: str, dtype: str) -> Outcome:
    """Log-probabilities that the sampler reports against those that the trainer computes for the same tokens."""
    model = random_model(target, family).to(target.device)
    prompts = [prompt for prompt, _ in rows(target)[::2]]
    count = 8 if target.tiny else 64
    sampler = LocalSampler(Local(max_new_tokens=count, max_prompt_tokens=128, dtype=dtype), [EOS])
    sampled = sampler.sample(model, prompts, 4, 1)
    pairs = [(p, r) for p, responses in zip(prompts, sampled.responses_BG, strict=True) for r in responses]
    with torch.no_grad():
        trainer = token_logps(model, TokenBatch.from_rows(pairs, target.device)).logps_N.cpu()
    stated = torch.tensor([x for group in sampled.logps_BG for row in group for x in row])
    error = (stated - trainer).abs().mean().item()
    return Outcome({"mean_gap_nats": error}, error <= BOUND_NATS[dtype], f"at most {BOUND_NATS[dtype]} nats per token")


def greedy(target: Target, family: str) -> Outcome:
    """Greedy tokens against Hugging Face `generate` on the same device, in float32."""
    model = random_model(target, family).to(target.device)
    model.generation_config.eos_token_id = None  # every response has the full length
    prompts = [prompt for prompt, _ in rows(target)[::2]]
    count = 8 if target.tiny else 32
    sampler = LocalSampler(Local(max_new_tokens=count, max_prompt_tokens=128, dtype="float32"), [-1])
    ours = sampler.sample(model, prompts, 1, 0, temperature=0.0).responses_BG
    same = 0
    for prompt, (response,) in zip(prompts, ours, strict=True):
        ids = torch.tensor([prompt], device=target.device)
        with torch.no_grad():
            theirs = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0
            )
        same += response == theirs[0, len(prompt) :].tolist()
    return Outcome({"same": same, "prompts": len(prompts)}, same == len(prompts), "the tokens of generate")


def passes(target: Target, way: Any) -> Outcome:
    """Log-probabilities of a batch whose rows share prompts, computed in one of the three ways."""
    model = random_model(target, "llama")
    expected = logps_on(exact(model), target, "cpu")
    model = model.to(target.device)
    with torch.no_grad():
        token_logps(model, on_device(target))  # finds out what the model can take
        with computed_as(way):
            found = token_logps(model, on_device(target)).logps_N.cpu().double()
    error = (found - expected).abs().mean().item()
    return Outcome({"mean_error_nats": error}, error <= BOUND_NATS["float32"], "float64 on the CPU as reference")


def dpo_at_reference(target: Target) -> Outcome:
    """DPO's loss is log 2 where the policy is the reference (arXiv:2305.18290, eq. 7)."""
    model = random_model(target, "llama").to(target.device)
    with torch.no_grad():
        pairs = PairLogps(*token_logps(model, on_device(target)).sum_B().chunk(2))
    loss = dpo(pairs, pairs, beta=0.1).per_pair_B.mean().item()
    return Outcome({"loss": loss}, abs(loss - 0.693147) < 1e-5, "log 2 = 0.693147")


# bitsandbytes


def nf4_forward(target: Target) -> Outcome:
    """A model in four bits against the same model with each layer's numbers unpacked and stored in float32."""
    packed = store(random_model(target, "llama"), "nf4", target.device).to(target.device)
    unpacked = copy.deepcopy(random_model(target, "llama")).to(target.device)
    names = dict(packed.named_modules())
    for name, layer in unpacked.named_modules():
        if isinstance(layer, nn.Linear) and "lm_head" not in name:
            layer.weight.data.copy_(numbers_of(names[name]).float())
    with torch.no_grad(), precision(target.device, "bfloat16"):
        found = token_logps(packed, on_device(target)).logps_N
        expected = token_logps(unpacked, on_device(target)).logps_N
    error = (found - expected).abs().mean().item()
    return Outcome({"mean_error_nats": error}, error <= BOUND_NATS["bfloat16"], "the same numbers, unpacked beforehand")


def nf4_gradient(target: Target) -> Outcome:
    model = add_adapter(store(random_model(target, "llama"), "nf4", target.device), LoRA(rank=8), 0).to(target.device)
    with precision(target.device, "bfloat16"):
        loss = -token_logps(model, on_device(target)).logps_N.mean()
    loss.backward()
    norms = [p.grad.norm().item() for name, p in model.named_parameters() if "lora_B" in name and p.grad is not None]
    good = bool(norms) and all(0 < norm < float("inf") for norm in norms)
    return Outcome({"matrices": len(norms), "smallest_norm": min(norms, default=0.0)}, good, "each lora_B has one")


def adamw_8bit(target: Target) -> Outcome:
    """Twenty steps of 8-bit AdamW against AdamW in float32, on the same gradients (arXiv:2110.02861)."""
    weights = {}
    for optimizer in ("adamw", "adamw_8bit"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 64)).to(target.device)
        settings = TrainingSettings(optimizer=optimizer, lr=1e-3, weight_decay=0.0)
        optimizers = Optimizers({"model": TrainedPart(model, 1e-3)}, settings)
        inputs = torch.randn(64, 256, device=target.device)
        for _ in range(20):
            model(inputs).square().mean().backward()
            optimizers.clip()
            optimizers.step(1.0)
        weights[optimizer] = torch.cat([p.detach().flatten() for p in model.parameters()])
    torch.manual_seed(0)
    start = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 64)).to(target.device)
    moved = weights["adamw"] - torch.cat([p.detach().flatten() for p in start.parameters()])
    error = ((weights["adamw_8bit"] - weights["adamw"]).norm() / moved.norm()).item()
    return Outcome({"relative_error": error}, error <= 0.2, "at most 0.2 of the distance that the weights moved")
