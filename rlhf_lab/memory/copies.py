"""Which models a stage holds, as its settings say, and how many rows its passes have at their longest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_lab.config import registry
from rlhf_lab.memory.shapes import need_shape, policy_shape
from rlhf_lab.memory.sizes import ModelShape
from rlhf_lab.memory.state import STRATEGIES, Training
from rlhf_lab.memory.work import Rows
from rlhf_lab.stages.artifacts import Stage
from rlhf_lab.training.settings import Held

SCORING_TOKENS = 16384
"""Padded tokens per pass without gradient where no setting says otherwise."""


@dataclass(frozen=True)
class Copy:
    """One model in a stage's memory.

    Attributes:
        trained: whether it has gradients and an optimiser.
        whole: trained whole, whatever `model.lora` says.
        reference: whether `sharding.reference` says where it lies.
        together: trained in one backward pass with the copies of the same number.
    """

    name: str
    shape: ModelShape
    trained: bool = False
    whole: bool = False
    reference: bool = False
    together: int = 0


def copies(stage: Stage) -> list[Copy]:
    """All models that are in memory at once while a stage trains, or evaluates."""
    policy, settings = policy_shape(stage), stage.config.algorithm
    # An adapter's base is its reference already, unless it is divided: see training.start.load_policy_twice.
    adapter = bool(stage.config.model.lora.rank) and not STRATEGIES[strategy(stage)].weights
    held = [_copy(model, stage, policy) for model in settings.held(adapter=adapter)]
    reads_reward = "reward" in settings.uses and settings.calls_reward
    return held + (reward_copies(stage) if reads_reward else [])


def _copy(model: Held, stage: Stage, policy: ModelShape) -> Copy:
    shape = need_shape(stage.needs[model.role]) if model.role else policy
    shape = shape.scalar(model.outputs) if model.outputs else shape
    return Copy(model.name, shape, model.trained, model.whole, model.reference, model.together)


def reward_copies(stage: Stage) -> list[Copy]:
    """Frozen models of the reward graph, members of an ensemble one by one; none where a role is not named."""
    terms = stage.config.reward.terms
    if any(role not in stage.needs for role in stage.config.reward.roles):
        return []
    found = []
    for name, term in terms.items():
        if term.needs_role is None:
            continue
        need = stage.needs[term.needs_role]
        shape = need_shape(need)
        shape = shape if term.needs_role == "follow_up" else shape.scalar()
        averaged = getattr(term, "ensemble", "") == "warm"
        count = 1 if averaged else _members(need)
        found += [Copy(f"reward {name}" + (f" {k}" if count > 1 else ""), shape) for k in range(count)]
    return found


def _members(need: Any) -> int:
    """Models of a reward that is a stage to be built, or a folder."""
    if isinstance(need, Stage) and not Path(need.model).is_dir():
        settings = need.config.algorithm
        return 1 if getattr(settings, "shared_trunk", False) else getattr(settings, "members", 1)
    further = Path(need.model) / "members"
    return 1 + sum((path / "config.json").is_file() for path in further.glob("*"))


def training(stage: Stage) -> Training:
    """How the stage's trained models are trained."""
    settings, lora = stage.config.algorithm, stage.config.model.lora
    return Training(
        stage.config.runtime.dtype,
        getattr(settings, "optimizer", None) or "adamw",
        lora.rank,
        lora.targets,
        stage.config.sharding.checkpointing,
    )


def step_rows(stage: Stage, processes: int) -> Rows:
    """One process's rows of an optimiser step, before they are cut into micro-batches.

    Half of a corpus row is taken to be its prompt. The replies of a group share their prompt where a step trains on
    whole groups.
    """
    settings, rollout = stage.config.algorithm, stage.config.rollout
    each = settings.rows_per_unit
    units = -(-settings.batch_size // processes)
    if settings.trains_on_reward:
        size, replies = settings.group_size, settings.replies
        prompts = -(-units // size) if size > 1 and settings.batch_size == replies else 0
        return Rows(units, rollout.max_prompt_tokens, rollout.max_new_tokens, prompts)
    width = settings.max_length
    prompts = units if settings.shares_prompts else 0
    return Rows(each * units, width // 2, width - width // 2, prompts)


def micro_rows(stage: Stage, processes: int) -> Rows:
    """Rows of the largest micro-batch: at most `algorithm.micro_batch_tokens`, at least one unit."""
    settings, rows = stage.config.algorithm, step_rows(stage, processes)
    each, limit = settings.rows_per_unit, settings.micro_batch_tokens
    if not limit or rows.rows * rows.width <= limit:
        return rows
    units = max(1, limit // (each * rows.width))
    share = -(-rows.prompts * each * units // rows.rows)
    return Rows(each * units, rows.prompt, rows.reply, share)


def sampled(stage: Stage) -> tuple[int, int] | None:
    """(prompts, replies to each) that the sampler decodes together, of the larger of rollouts and evaluation."""
    limit = stage.config.rollout.batch_rows
    wanted = stage.config.algorithm.sampled(stage.config.evaluation, limit)
    batches = [(min(prompts, max(1, limit // group)), group) for prompts, group in wanted]
    return max(batches, key=lambda batch: batch[0] * batch[1], default=None)


def scored_rows(stage: Stage, tokens: int) -> Rows:
    """Rows of a pass without gradient over `tokens` padded tokens."""
    rollout = stage.config.rollout
    prompt, reply = rollout.max_prompt_tokens, rollout.max_new_tokens
    return Rows(max(1, tokens // (prompt + reply)), prompt, reply)


def whole_copy(models: list[Copy], training: Training, name: str, processes: int) -> int:
    """Bytes of the ordinary copy of a divided policy that the sampler reads."""
    if not STRATEGIES[name].weights or processes == 1:
        return 0
    each = 2 if STRATEGIES[name].rooted and training.precision == "bfloat16" else 4
    return each * next((m.shape.parameters for m in models if m.trained and not m.shape.outputs), 0)


def strategy(stage: Stage) -> str:
    """The name in `STRATEGIES` of what `sharding` says."""
    settings = stage.config.sharding
    kind = registry.kind_of("sharding", settings)
    if kind == "fsdp":
        return "fsdp_full" if settings.reshard_after_forward else "fsdp_grad_op"
    return f"zero{settings.stage}" if kind == "zero" else kind
