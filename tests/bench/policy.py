"""A full GRPO step against TRL's trainer, and a PPO iteration against the sum of its parts.

A step is: sample a group of responses to each prompt, score them, one update (β > 0, so the reference runs too). Both
sides have the same model, prompts, batch, lengths, optimiser and dtype, and a reward that costs nothing. Responses are
sampled, so losses differ; the counts of generated tokens are checked to be similar.

- Ours: `collect`, `loss` and `Optimizers` as the training loop calls them.
- TRL: `training_step` with one generation per step, its trainer's optimiser, with the same clipping.

PPO's floor is what cannot be left out: sampling, one forward pass of reward model and reference, one forward of the
critic for the values, and forward and backward of policy and critic over the same rows, each timed by itself.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from shapes import build_model, scale
from timing import Row, Work, compare, race
from torch import nn
from training import HAS_TRL, LR, tokenizer_of

from rlhf_lab.algorithms.policy_gradient.on_policy import OnPolicy
from rlhf_lab.config import command_line, registry
from rlhf_lab.core.types import RewardBatch
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.rewards.settings import RewardGraph
from rlhf_lab.rewards.term import TermSettings
from rlhf_lab.stages import artifacts
from rlhf_lab.training.optim import Optimizers
from rlhf_lab.training.run import Run

VOCABULARY, PROMPTS, GROUP, REPLY, PROMPT_WORDS = 1000, 4, 8, 40, 28
BETA = 0.04
BARS = {"1M": 1.8, "10M": 1.3}  # measured on a CPU; on a GPU the ratios are information


class Even:
    """Reward: fraction of even words. Costs nothing."""

    def __call__(self, prompts: Any, responses: Any) -> RewardBatch:
        return RewardBatch(np.array([score(text) for text in responses]))


def score(text: str) -> float:
    words = text.split()
    return sum(word[-1] in "02468" for word in words) / max(1, len(words))


def rows(rounds: int) -> list[Row]:
    registry.register("reward", "bench", implementation=__name__)(BenchReward)
    found = []
    for size in scale.sizes:
        found += _grpo(_dir("llama", size), size, rounds)
    if not scale.bfloat16:
        scale.bfloat16 = True
        found += _grpo(_dir("llama", scale.sizes[-1]), scale.sizes[-1], rounds)
        scale.bfloat16 = False
    return [*found, *_ppo(_dir("llama", scale.sizes[0]), rounds)]


@dataclass(frozen=True)
class BenchReward(TermSettings):
    """Settings of the reward above."""


def build(settings: BenchReward, run: Run) -> Even:
    return Even()


def _dir(family: str, size: str) -> Path:
    """A model, its tokenizer and a corpus of prompts."""
    directory = Path(tempfile.mkdtemp(prefix="bench-policy-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    build_model(family, size, VOCABULARY).save_pretrained(directory / "model")  # type: ignore[operator]
    tokenizer_of(VOCABULARY).save_pretrained(directory / "model")
    rng = np.random.default_rng(0)
    with (directory / "pairs.jsonl").open("w") as file:
        for _ in range(64):
            prompt = " ".join(f"w{i}" for i in rng.integers(3, VOCABULARY, PROMPT_WORDS))
            pair = {"prompt": f"\n\nHuman: {prompt}\n\nAssistant:", "chosen": "w5 w6", "rejected": "w7"}
            file.write(json.dumps(pair) + "\n")
    return directory


def _algorithm(directory: Path, recipe: str, *overrides: str) -> OnPolicy:
    command = command_line.check_command(
        [
            f"+recipe={recipe}",
            "data=pairs",
            f"data.path={directory}/pairs.jsonl",
            "model=hf",
            f"model.path={directory}/model",
            f"needs.policy={directory}/model",
            "needs.reward=null",
            "reward=length",
            f"algorithm.beta={BETA}",
            f"algorithm.lr={LR}",
            "algorithm.max_length=128",
            f"rollout.max_new_tokens={REPLY}",
            "rollout.max_prompt_tokens=64",
            f"runtime.device={scale.device}",
            f"runtime.dtype={'bfloat16' if scale.bfloat16 else 'float32'}",
            f"rollout.dtype={'bfloat16' if scale.bfloat16 else 'model'}",
            *overrides,
        ]
    )
    config = command.configs[0]
    object.__setattr__(config, "reward", RewardGraph(terms={"bench": BenchReward()}))
    (directory / recipe).mkdir(exist_ok=True)
    stage = artifacts.Stage(recipe, config, {})
    run = Run(directory / recipe, stage.config, {"policy": f"{directory}/model"})
    return registry.build("algorithm", config.algorithm, run)


def _stepper(algorithm: OnPolicy) -> Work:
    """The training loop's work for one optimiser step, as a function to be timed."""
    optimizers, position = Optimizers(algorithm.parts(), algorithm.settings), iter(range(10**6))

    def step() -> None:
        batch = algorithm.collect(next(position))
        for micro in batch.micro:
            with algorithm.run.autocast():
                out = algorithm.loss(micro)
            (out.loss_N.sum() / batch.units).backward()
        optimizers.clip()
        optimizers.step(1.0)

    return step


def _grpo(directory: Path, size: str, rounds: int) -> list[Row]:
    dtype = "bfloat16" if scale.bfloat16 else "float32"
    work, against = f"GRPO step, {PROMPTS}×{GROUP} replies of {REPLY}, {size} llama, {dtype}", "TRL training_step"
    shape = (f"algorithm.prompts_per_iteration={PROMPTS}", f"algorithm.group_size={GROUP}")
    ours = _algorithm(
        directory, "grpo", *shape, f"algorithm.batch_size={PROMPTS * GROUP}", "algorithm.iterations=100000"
    )
    contestants: dict[str, Work] = {"ours": _stepper(ours)}
    if not HAS_TRL:
        return [Row(work, against, None, None, None, BARS.get(size), "trl not installed")]
    trainer, contestants["trl"] = _trl_grpo(directory)
    seconds = race(contestants, rounds)
    tokens = {
        "ours": ours.generated / (rounds + 1),
        "trl": float(np.mean(trainer._metrics["train"]["num_tokens"][-1:])),
    }
    per_step = tokens["trl"] / (rounds + 1) - PROMPTS * GROUP * (PROMPT_WORDS + 4)
    if abs(tokens["ours"] / max(per_step, 1) - 1) > 0.1:
        raise RuntimeError(f"{work}: tokens per step differ: {tokens['ours']:.0f} and {per_step:.0f}")
    return [compare(work, against, seconds["ours"], seconds["trl"], BARS.get(size))]


def _trl_grpo(directory: Path) -> tuple[Any, Work]:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    prompts = [json.loads(line)["prompt"] for line in (directory / "pairs.jsonl").read_text().splitlines()]
    model = AutoModelForCausalLM.from_pretrained(directory / "model", dtype=torch.float32, attn_implementation="sdpa")
    model = model.to(scale.device)
    args = GRPOConfig(
        output_dir=str(directory / "trl"),
        use_cpu=scale.device == "cpu",
        bf16=scale.bfloat16,
        gradient_checkpointing=False,
        learning_rate=LR,
        max_grad_norm=1.0,
        report_to=[],
        disable_tqdm=True,
        per_device_train_batch_size=PROMPTS * GROUP,
        num_generations=GROUP,
        steps_per_generation=1,
        max_completion_length=REPLY,
        temperature=1.0,
        beta=BETA,
    )
    trainer = GRPOTrainer(
        model,
        reward_funcs=lambda completions, **_: [score(text) for text in completions],
        args=args,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
        processing_class=AutoTokenizer.from_pretrained(directory / "model"),
    )
    trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = 1
    model.train()
    turn = iter(range(10**6))

    def step() -> None:
        first = next(turn) * PROMPTS
        inputs = [{"prompt": prompts[(first + i) % len(prompts)]} for i in range(PROMPTS) for _ in range(GROUP)]
        trainer.training_step(model, inputs, num_items_in_batch=None)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()

    return trainer, step


def _ppo(directory: Path, rounds: int) -> list[Row]:
    """One PPO iteration of one pass over its samples against the sum of its parts."""
    responses = PROMPTS * GROUP
    shape = (f"algorithm.prompts_per_iteration={responses}", f"algorithm.batch_size={responses}", "algorithm.epochs=1")
    more = (
        "algorithm.critic=zero",
        "algorithm.critic_warmup=0",
        "algorithm.critic_lr=1e-4",
        "algorithm.iterations=100000",
    )
    algorithm: Any = _algorithm(directory, "ppo", *shape, *more)
    step = _stepper(algorithm)
    step()
    texts = [task.prompt for task in algorithm.rollouts.tasks[:responses]]
    ids = [algorithm.encoder.prompt(text) for text in texts]
    batch = TokenBatch.from_rows(algorithm.experience.rows, scale.device)

    def update(values: Any, module: nn.Module) -> None:
        values.sum().backward()
        module.zero_grad()

    @torch.no_grad()
    def reference() -> None:
        token_logps(algorithm.reference, batch)

    @torch.no_grad()
    def values() -> None:
        algorithm.critic.values(batch)

    parts: dict[str, Work] = {
        "sample": lambda: algorithm.rollouts.collector.sampler.sample(algorithm.model, ids, 1, 0),
        "reference": reference,
        "values": values,
        "policy": lambda: update(token_logps(algorithm.model, batch).logps_N, algorithm.model),
        "critic": lambda: update(algorithm.critic.values(batch), algorithm.critic),
    }
    seconds = race({"ours": step, **parts}, rounds)
    floor = [sum(seconds[name][i] for name in parts) for i in range(rounds)]
    work = f"PPO iteration, {responses} replies of {REPLY}, {scale.sizes[0]} llama"
    return [compare(work, "sum of its parts: " + ", ".join(parts), seconds["ours"], floor, None)]
