"""Which models a stage holds, as its settings say, and how many rows its passes have at their longest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from rlhf_lab.config import registry
from rlhf_lab.memory.one_base import reward_adapter, why_apart
from rlhf_lab.memory.shapes import need_shape, policy_shape, source_shape
from rlhf_lab.memory.sizes import ModelShape
from rlhf_lab.memory.state import STRATEGIES, Training, ceil_div
from rlhf_lab.memory.work import Rows
from rlhf_lab.models.settings import Stored, WeightsOf
from rlhf_lab.stages.artifacts import GOLD, External, Stage
from rlhf_lab.training.settings import Held
from rlhf_lab.training.sharding.settings import FullySharded, Zero

SCORING_TOKENS = 16384
"""Padded tokens per pass without gradient where no setting says otherwise."""


@dataclass(frozen=True)
class Copy:
    """One model in a stage's memory.

    Attributes:
        trained: whether it has gradients and an optimiser.
        reference: whether `sharding.reference` says where it lies.
        together: number of the backward pass that trains it; copies with the same number share one.
        stored: its weights, if it is frozen.
        beside: numbers of a frozen adapter and its head that lie on the base of the policy's adapter, and are all of
            its own that is frozen; None for a model with weights of its own.
        apart: why an adapter has a base of its own all the same; empty for anything else.
    """

    name: str
    shape: ModelShape
    trained: bool = False
    reference: bool = False
    together: int = 0
    stored: Stored = "float32"
    beside: int | None = None
    apart: str = ""


def copies(stage: Stage) -> list[Copy]:
    """All models that are in memory at once while a stage trains, or evaluates."""
    policy = policy_shape(stage)
    settings = stage.config.algorithm
    algorithm_copies = [_copy_of(model, stage, policy) for model in settings.held(adapter=shares_base(stage))]
    if "reward" in settings.uses and settings.calls_reward:
        algorithm_copies += reward_copies(stage)
    return algorithm_copies + gold_copies(stage) + section_copies(stage)


def shares_base(stage: Stage) -> bool:
    """Whether the base of the policy's adapter serves as its reference and as the base of other adapters.

    That of a divided policy does not: see training.start.load_policy_twice.
    """
    trains_adapter = bool(stage.config.model.lora.rank) and stage.config.algorithm.makes_model
    return trains_adapter and "policy" in stage.needs and not STRATEGIES[strategy(stage)].weights


def _copy_of(model: Held, stage: Stage, policy: ModelShape) -> Copy:
    """A model that the algorithm's settings name, with its shape."""
    shape = need_shape(stage.needs[model.role]) if model.role else policy
    if model.outputs:
        shape = shape.scalar(model.outputs)
    stored = _stored(stage, "reference" if model.reference else "policy", shape)
    copy = Copy(model.name, shape, model.trained, model.reference, model.together, stored)
    if model.starts_from == "policy" and shares_base(stage):
        return replace(copy, beside=0)
    if model.starts_from == "reward":  # its head is trained
        return _on_base(copy, stage, stage.needs["reward"], stage.config.model.stored("policy"), head=0)
    return copy


def _on_base(copy: Copy, stage: Stage, need: Stage | External, wanted: Stored, *, head: int, member: int = 0) -> Copy:
    """The copy of a reward model, or of a critic that starts from it, on the base of the policy's adapter if it can be.

    Args:
        wanted: how its role is to be stored.
        head: numbers of a frozen head.
    """
    adapter = reward_adapter(stage, need, member) if shares_base(stage) else None
    if adapter is None:
        return copy
    reason = why_apart(stage, adapter, wanted)
    if reason:
        return replace(copy, apart=reason)
    return replace(copy, beside=adapter.parameters(copy.shape) + head)


def _stored(stage: Stage, role: WeightsOf, shape: ModelShape) -> Stored:
    """How a frozen model's weights are stored: a model with a scalar head is a reward model in any role."""
    return stage.config.model.stored("reward" if shape.outputs else role)


def reward_copies(stage: Stage) -> list[Copy]:
    """Frozen models of the reward graph, members of an ensemble one by one; none where a role is not named."""
    if any(role not in stage.needs for role in stage.config.reward.roles):
        return []
    models = []
    for name, term in stage.config.reward.terms.items():
        if term.needs_role is None or term.reads_folder:  # a few numbers per feature, or a model of audio
            continue
        need = stage.needs[term.needs_role]
        shape = need_shape(need)
        if term.needs_role != "follow_up":  # that one is a language model; the others have a scalar head
            shape = shape.scalar()
        averages_weights = getattr(term, "ensemble", "") == "warm"  # WARM: one model, the mean of the members' weights
        count = 1 if averages_weights else _member_count(need)
        for member in range(count):
            label = f"reward {name} {member}" if count > 1 else f"reward {name}"
            copy = Copy(label, shape, stored=_stored(stage, "policy", shape))
            if shape.outputs and not averages_weights:  # a mean of weights is a model of its own
                head = shape.outputs * shape.hidden
                copy = _on_base(copy, stage, need, copy.stored, head=head, member=member)
            models.append(copy)
    return models


def gold_copies(stage: Stage) -> list[Copy]:
    """The reward model in `needs.gold`, members of an ensemble one by one; none where it is not named."""
    need = stage.needs.get(GOLD)
    if need is None:
        return []
    shape = need_shape(need).scalar()
    count = _member_count(need)
    stored = _stored(stage, "policy", shape)
    return [Copy(f"gold {member}" if count > 1 else "gold", shape, stored=stored) for member in range(count)]


def section_copies(stage: Stage) -> list[Copy]:
    """Models that sections load, such as a judge on this machine. Of several processes, the one that asks holds it."""
    sections = stage.config.sections().values()
    sources = {name: source for section in sections for name, source in section.local_models(stage.config).items()}
    return [Copy(name, source_shape(source)) for name, source in sources.items()]


def _member_count(need: Stage | External) -> int:
    """Models of a reward ensemble, from the settings of a stage to be built, or from what a folder holds."""
    if isinstance(need, Stage) and not Path(need.model).is_dir():
        settings = need.config.algorithm
        return 1 if getattr(settings, "shared_trunk", False) else getattr(settings, "members", 1)
    other_members = (Path(need.model) / "members").glob("*")  # the first one is the folder itself
    return 1 + sum((path / "config.json").is_file() for path in other_members)


def training(stage: Stage) -> Training:
    """How the stage's trained models are trained."""
    lora = stage.config.model.lora
    stored: Stored = stage.config.model.stored("policy") if lora.rank else "float32"
    return Training(
        precision=stage.config.runtime.dtype if stored == "float32" else "bfloat16",
        optimizer=getattr(stage.config.algorithm, "optimizer", None) or "adamw",
        rank=lora.rank,
        targets=lora.targets,
        checkpointing=stage.config.sharding.checkpointing,
        stored=stored,
    )


def reply_tokens(stage: Stage) -> int:
    """The most tokens behind a sampled prompt: of a reply, or of an episode of several turns."""
    return stage.config.rollout.most_tokens(stage.config.data.max_turns)


def step_rows(stage: Stage, processes: int) -> Rows:
    """One process's rows of an optimiser step, before they are cut into micro-batches.

    Half of a corpus row is assumed to be its prompt. The replies of a group share their prompt where a step trains on
    whole groups.
    """
    settings = stage.config.algorithm
    rollout = stage.config.rollout
    units = ceil_div(settings.batch_size, processes)  # replies, or rows or pairs of the corpus
    if settings.trains_on_reward:
        group_size = settings.group_size
        whole_groups = group_size > 1 and settings.batch_size == settings.replies
        prompts = ceil_div(units, group_size) if whole_groups else 0
        return Rows(units, rollout.max_prompt_tokens, reply_tokens(stage), prompts)
    width = settings.max_length
    prompts = units if settings.shares_prompts else 0
    return Rows(settings.rows_per_unit * units, width // 2, width - width // 2, prompts)


def micro_rows(stage: Stage, processes: int) -> Rows:
    """Rows of the largest micro-batch: at most `algorithm.micro_batch_tokens`, at least one unit."""
    settings = stage.config.algorithm
    rows = step_rows(stage, processes)
    limit = settings.micro_batch_tokens
    if not limit or rows.rows * rows.width <= limit:
        return rows
    units = max(1, limit // (settings.rows_per_unit * rows.width))
    micro_batch = settings.rows_per_unit * units
    prompts = ceil_div(rows.prompts * micro_batch, rows.rows)
    return Rows(micro_batch, rows.prompt, rows.reply, prompts)


class SampledBatch(NamedTuple):
    """What the sampler decodes together: `group` replies to each of `prompts`, and whether further rows wait."""

    prompts: int
    group: int
    refilled: bool

    @property
    def rows(self) -> int:
        return self.prompts * self.group


def sampled(stage: Stage) -> SampledBatch | None:
    """The larger batch of rollouts and evaluation; None where nothing is sampled. As in `sampling/decoding.py`."""
    limit = stage.config.rollout.batch_rows
    batches = []
    for prompts, group in stage.config.algorithm.sampled(stage.config.evaluation, limit):
        groups = min(prompts, limit // group)
        together = (groups, group) if groups else (1, min(limit, group))
        batches.append(SampledBatch(together[0], together[1], refilled=together != (prompts, group)))
    return max(batches, key=lambda batch: (batch.rows, batch.refilled), default=None)


def scored_rows(stage: Stage, tokens: int) -> Rows:
    """Rows of a pass without gradient over `tokens` padded tokens."""
    rollout = stage.config.rollout
    prompt, reply = rollout.max_prompt_tokens, reply_tokens(stage)
    return Rows(max(1, tokens // (prompt + reply)), prompt, reply)


def gathered_to_sample(stage: Stage, models: list[Copy], training: Training, processes: int) -> tuple[int, int]:
    """(bytes of a divided policy that are whole while it is sampled, bytes of a block that are so while it computes).

    The whole policy and 0; or with `sharding.sampling=block` what is outside the blocks, and one of them.
    """
    name = strategy(stage)
    policies = [model.shape for model in models if model.trained and not model.shape.outputs]
    if not STRATEGIES[name].weights or processes == 1 or not policies:
        return 0, 0
    shape = policies[0]
    bytes_each = gathered_number(training, name, processes)
    if getattr(stage.config.sharding, "sampling", "whole") == "block":
        return bytes_each * shape.root, bytes_each * shape.block
    return bytes_each * shape.parameters, 0


def gathered_number(training: Training, name: str, processes: int) -> int:
    """Bytes of a number of the policy as the sampler reads it: FSDP2 gathers it in the arithmetic of training."""
    rooted = processes > 1 and STRATEGIES[name].rooted
    return 2 if rooted and training.precision == "bfloat16" else 4


def strategy(stage: Stage) -> str:
    """The name in `STRATEGIES` of a stage's `sharding`."""
    settings = stage.config.sharding
    if isinstance(settings, FullySharded):
        return "fsdp_full" if settings.reshard_after_forward else "fsdp_grad_op"
    if isinstance(settings, Zero):
        return f"zero{settings.stage}"
    return registry.kind_of("sharding", settings)
