"""A GRPO step on the tool world against what it cannot do without.

The policy repeats the demonstrations: its sampled tokens are replaced by those of the script. So every
round has the same conversations, whatever the model has learned, at the cost of sampled ones.

- Parts: collecting the episodes, forward and backward over their rows, each timed by itself. What the step takes beyond
  them is the reward, advantages, the optimiser and the loop.
- Floor: the floating-point operations of matrix products, at the rate of one product of this size on this machine:
  2 for each weight and token in a forward pass, 4 in a backward one. A prompt is read once for its group, the output
  head serves sampled tokens alone, and attention is left out (a few per cent at these lengths).
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from shapes import scale
from timing import Row, Work, compare, race
from torch import Tensor, nn

from rlhf_lab.algorithms.policy_gradient.on_policy import OnPolicy
from rlhf_lab.config import command_line, registry
from rlhf_lab.core.episodes import Task
from rlhf_lab.models.build import scratch_policy
from rlhf_lab.models.encoding import Encoder, TokenBatch
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.models.settings import Scratch
from rlhf_lab.models.tokenizer import train_tokenizer
from rlhf_lab.packs.agents.tools.settings import Tools
from rlhf_lab.packs.agents.tools.tools import build
from rlhf_lab.sampling import local
from rlhf_lab.sampling.turns import SeveralTurns
from rlhf_lab.stages import artifacts
from rlhf_lab.training.optim import Optimizers
from rlhf_lab.training.run import Run

PROMPTS, GROUP, TASKS = 16, 8, 64


def rows(rounds: int) -> list[Row]:
    algorithm: Any = _algorithm()
    tasks = algorithm.rollouts.tasks
    responses = {task.prompt: _replies(algorithm, task) for task in tasks}
    own_turns = local.SeveralTurns
    local.SeveralTurns = _scripted(algorithm, responses)  # type: ignore[misc]
    try:
        return _measured(algorithm, rounds)
    finally:
        local.SeveralTurns = own_turns  # type: ignore[misc]


def _algorithm() -> OnPolicy:
    """GRPO of `+recipe=grpo_agent` with a policy that was never trained."""
    directory = Path(tempfile.mkdtemp(prefix="bench-episodes-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    texts = [text for pair in build(Tools(train_tasks=1000, seed=0)).train for text in (pair.prompt, f" {pair.chosen}")]
    tokenizer = train_tokenizer(texts, 4096)
    policy: Any = scratch_policy(Scratch(max_positions=512), tokenizer, seed=0)
    policy.save_pretrained(directory / "model")
    tokenizer.save_pretrained(directory / "model")
    command = command_line.check_command(
        [
            "+recipe=grpo_agent",
            f"data.train_tasks={TASKS}",
            "data.test_tasks=4",
            "data.seed=0",
            "model=hf",
            f"model.path={directory}/model",
            f"needs.policy={directory}/model",
            "reward=environment",
            f"algorithm.prompts_per_iteration={PROMPTS}",
            f"algorithm.group_size={GROUP}",
            f"algorithm.batch_size={PROMPTS * GROUP}",
            "algorithm.iterations=100000",
            f"runtime.device={scale.device}",
            "runtime.dtype=float32",
        ]
    )
    config = command.configs[0]
    (directory / "run").mkdir()
    stage = artifacts.Stage("grpo_agent", config, {})
    run = Run(directory / "run", stage.config, {"policy": f"{directory}/model"})
    algorithm: OnPolicy = registry.build("algorithm", config.algorithm, run)
    algorithm.checked = True  # the script's tokens do not have the log-probabilities of the sampled ones
    return algorithm


def _replies(algorithm: Any, task: Task) -> list[list[int]]:
    """The turns of a task's demonstration, as token ids."""
    encoder: Encoder = algorithm.encoder
    text = algorithm.run.corpus.environment.demonstration(task)
    return [encoder.response(message["content"]) for message in text if message["role"] == "assistant"]


def _scripted(algorithm: Any, responses: dict[str, list[list[int]]]) -> type[SeveralTurns]:
    """Turns with the script's tokens instead of the sampled ones."""
    collector = algorithm.rollouts.collector
    collect = collector.collect
    requested: list[Task] = []

    def remembering(model: nn.Module, tasks: list[Task], *arguments: Any, **named: Any) -> Any:
        requested[:] = tasks
        return collect(model, tasks, *arguments, **named)

    collector.collect = remembering

    class Scripted(SeveralTurns):
        def take(self, token_R: Tensor, logp_R: Tensor) -> tuple[Tensor, Tensor]:
            tokens = token_R.tolist()
            for position, row in enumerate(self.batch):
                if row in self.live and not self.forced[row]:
                    turns = responses[requested[row // GROUP].prompt]
                    turn = turns[min(self.turn[row], len(turns) - 1)]
                    tokens[position] = turn[min(len(self.spoken[row]), len(turn) - 1)]
            return super().take(torch.tensor(tokens, device=token_R.device), logp_R)

    return Scripted


def _measured(algorithm: Any, rounds: int) -> list[Row]:
    optimizers, position = Optimizers(algorithm.parts(), algorithm.settings), iter(range(10**6))
    model = algorithm.model

    def step() -> None:
        batch = algorithm.collect(next(position))
        for micro in batch.micro:
            (algorithm.loss(micro).loss_N.sum() / batch.units).backward()
        optimizers.clip()
        optimizers.step(1.0)

    step()
    tasks = [group.task for group in algorithm.rollouts.draw(model, 0)[0]]
    collected = algorithm.rollouts.collector.collect(model, tasks, GROUP, 0)
    episodes = [episode for group in collected for episode in group]
    rows_of = [(episode.prompt_ids, episode.token_ids) for episode in episodes]
    batch = TokenBatch.from_rows(rows_of, scale.device, [episode.sampled for episode in episodes])

    def update() -> None:
        token_logps(model, batch).logps_N.sum().backward()
        model.zero_grad()

    weights = sum(p.numel() for p in model.model.layers.parameters() if p.dim() == 2)
    head = model.lm_head.weight.numel()
    prompt_tokens = sum(len(group[0].prompt_ids) for group in collected)
    tokens = prompt_tokens + sum(len(episode.token_ids) for episode in episodes)
    sampled = sum(episode.sampled_tokens for episode in episodes)
    forward = 2 * (weights * tokens + head * sampled)

    hidden = model.config.hidden_size
    left, right = torch.randn(PROMPTS * GROUP, hidden), torch.randn(hidden, 4 * hidden)
    products = 200
    operations = products * 2 * left.shape[0] * right.numel()

    def product() -> None:
        for _ in range(products):
            left @ right

    parts: dict[str, Work] = {
        "collect": lambda: algorithm.rollouts.collector.collect(model, tasks, GROUP, 0),
        "update": update,
        "product": product,
    }
    seconds = race({"ours": step, **parts}, rounds)
    both = [a + b for a, b in zip(seconds["collect"], seconds["update"], strict=True)]

    def floor(flops: int) -> list[float]:
        return [flops * second / operations for second in seconds["product"]]

    work = f"GRPO step with tools, {PROMPTS}×{GROUP} episodes of {tokens // len(episodes)} tokens"
    counted = "its floating-point operations at the rate of a product"
    collecting, updating = floor(forward), floor(3 * forward)
    return [
        compare(work, "sum of its parts: collect, forward and backward", seconds["ours"], both, None),
        compare(f"{work}: collect", f"{counted}, {forward / 1e9:.1f} G", seconds["collect"], collecting, None),
        compare(f"{work}: update", f"{counted}, {3 * forward / 1e9:.1f} G", seconds["update"], updating, None),
    ]
