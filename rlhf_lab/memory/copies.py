"""Which models a stage holds, by algorithm, and how many rows its passes have at their longest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_lab.config import registry
from rlhf_lab.memory.shapes import need_shape, policy_shape
from rlhf_lab.memory.sizes import ModelShape
from rlhf_lab.memory.state import STRATEGIES, Training
from rlhf_lab.memory.work import Rows
from rlhf_lab.stages.artifacts import Stage

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
    policy = policy_shape(stage)
    return HELD.get(stage.kind, _policy_alone)(stage, policy)


def _policy_alone(stage: Stage, policy: ModelShape) -> list[Copy]:
    return [Copy("policy", policy, trained=stage.config.algorithm.makes_model)]


def _reward_model(stage: Stage, policy: ModelShape) -> list[Copy]:
    """The policy that samples pairs stays; members are trained side by side, one backward pass each."""
    settings = stage.config.algorithm
    heads = 2 if settings.length_head else 1
    if settings.shared_trunk:
        members = [Copy("reward model", policy.scalar(heads * settings.members), trained=True)]
    else:
        names = [f"member {k}" if settings.members > 1 else "reward model" for k in range(settings.members)]
        members = [Copy(name, policy.scalar(heads), trained=True, together=k) for k, name in enumerate(names)]
    return [*members, Copy("policy (samples)", policy)]


def _rubric(stage: Stage, policy: ModelShape) -> list[Copy]:
    return [Copy("rubric model", policy.scalar(), trained=True), Copy("policy (samples)", policy)]


def _judge(stage: Stage, policy: ModelShape) -> list[Copy]:
    return [Copy("reward model", policy.scalar(), trained=True)]


def _crossfit(stage: Stage, policy: ModelShape) -> list[Copy]:
    folds = range(stage.config.algorithm.folds)
    return [Copy(f"fold {k}", policy.scalar(), trained=True, together=k) for k in folds]


def _with_reference(stage: Stage, policy: ModelShape) -> list[Copy]:
    """Policy, reference (an adapter's base is one already, unless it is divided), critic, and what the reward needs."""
    lora, critic = stage.config.model.lora.rank, getattr(stage.config.algorithm, "critic", "shared")
    held = [Copy("policy", policy, trained=True)]
    held += [] if lora and not STRATEGIES[strategy(stage)].weights else [Copy("reference", policy, reference=True)]
    held += [] if critic == "shared" else [Copy("critic", policy.scalar(), trained=True, whole=True)]
    return held + reward_copies(stage)


def _evaluation(stage: Stage, policy: ModelShape) -> list[Copy]:
    """One policy at a time beside the reference."""
    compared = stage.kind == "compare"
    others = [Copy("compared policy", policy)] if compared else []
    judge = stage.needs.get("judge")
    others += [Copy("judge", need_shape(judge).scalar())] if judge else []
    return [Copy("reference" if compared else "policy", policy), *others, *reward_copies(stage)]


HELD: dict[str, Callable[[Stage, ModelShape], list[Copy]]] = {
    "reward_model": _reward_model,
    "rubric_rm": _rubric,
    "prm": _judge,
    "orm": _judge,
    "crossfit": _crossfit,
    **dict.fromkeys(("dpo", "dpo_iterative", "ppo", "grpo"), _with_reference),
    **dict.fromkeys(("best_of_n", "compare", "rm_report", "rm_bench", "step_report"), _evaluation),
}
"""Algorithm → the models it holds; another one holds its policy."""


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


def rows_per_unit(stage: Stage) -> int:
    """Rows of a forward pass for each of `algorithm.batch_size`."""
    settings = stage.config.algorithm
    if stage.kind == "reward_model" and settings.confidence_weight:
        return 6
    return 2 if settings.needs_preferences else 1


def step_rows(stage: Stage, processes: int) -> Rows:
    """One process's rows of an optimiser step, before they are cut into micro-batches.

    Half of a corpus row is taken to be its prompt. The replies of a group share their prompt where a step trains on
    whole groups.
    """
    settings, rollout, each = stage.config.algorithm, stage.config.rollout, rows_per_unit(stage)
    units = -(-settings.batch_size // processes)
    if settings.trains_on_reward:
        size, replies = settings.group_size, settings.replies
        prompts = -(-units // size) if size > 1 and settings.batch_size == replies else 0
        return Rows(units, rollout.max_prompt_tokens, rollout.max_new_tokens, prompts)
    width = settings.max_length
    prompts = units if stage.kind in ("dpo", "dpo_iterative") else 0
    return Rows(each * units, width // 2, width - width // 2, prompts)


def micro_rows(stage: Stage, processes: int) -> Rows:
    """Rows of the largest micro-batch: at most `algorithm.micro_batch_tokens`, at least one unit."""
    rows, each, limit = step_rows(stage, processes), rows_per_unit(stage), stage.config.algorithm.micro_batch_tokens
    if not limit or rows.rows * rows.width <= limit:
        return rows
    units = max(1, limit // (each * rows.width))
    share = -(-rows.prompts * each * units // rows.rows)
    return Rows(each * units, rows.prompt, rows.reply, share)


def sampled(stage: Stage) -> tuple[int, int] | None:
    """(prompts, replies to each) that the sampler decodes together, of the larger of rollouts and evaluation."""
    settings, evaluation, limit = stage.config.algorithm, stage.config.evaluation, stage.config.rollout.batch_rows
    wanted = [(evaluation.prompts, evaluation.samples_per_prompt)] if "evaluation" in settings.uses else []
    if settings.trains_on_reward:
        wanted.append((settings.prompts_per_iteration, settings.sampled_per_prompt))
    elif stage.kind == "dpo_iterative":
        wanted.append((settings.prompts_per_round, settings.samples_per_prompt))
    elif stage.kind in ("reward_model", "rubric_rm"):
        wanted.append((limit, 2))
    elif stage.kind in ("prm", "orm"):
        wanted.append((limit, max(1, settings.trajectories)))
    elif stage.kind in ("best_of_n", "step_report"):
        wanted.append((evaluation.prompts, settings.samples))
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
