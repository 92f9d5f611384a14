"""Models that a stage holds in memory according to its settings, and the largest batches of its passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from rlhf_lab.config import registry
from rlhf_lab.core.files import read_json
from rlhf_lab.memory.shapes import need_shape, policy_shape, source_shape
from rlhf_lab.memory.sizes import ModelShape
from rlhf_lab.memory.state import STRATEGIES, Training, ceil_div
from rlhf_lab.memory.work import Rows
from rlhf_lab.models.model_files import ADAPTER, Record, adapter_dir, base_identity, cached_commit
from rlhf_lab.models.settings import Stored, WeightsOf
from rlhf_lab.stages.artifacts import GOLD, External, Stage
from rlhf_lab.training.settings import SOUP
from rlhf_lab.training.sharding.settings import FullySharded, Zero
from rlhf_lab.training.stage_spec import ModelCopies

SCORING_TOKENS = 16384
"""Padded tokens per pass without gradient if no setting determines them."""


@dataclass(frozen=True)
class Copy:
    """One model in a stage's memory.

    Attributes:
        trained: True if it has gradients and an optimizer.
        reference: True if `sharding.reference` determines its location.
        together: index of the backward pass that trains it; models with the same index share one.
        stored: storage of its weights, if it is frozen.
        beside: number of frozen values of an adapter and its head on the base of the policy's adapter. The model has no
            other frozen values. None for a model with its own weights.
        apart: reason why an adapter nevertheless has its own base; empty for all other models.
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
    """Return all models that are in memory at the same time while a stage trains or evaluates."""
    # models without a role of their own have the shape of the policy
    policy = policy_shape(stage)
    settings = stage.config.algorithm
    is_shared = shares_base(stage)
    # a soup is a model of its own, so the base of an adapter does not serve as its reference
    base_is_reference = is_shared and SOUP not in stage.needs
    algorithm_copies = [_copy_of(model, stage, policy) for model in settings.model_copies(adapter=base_is_reference)]
    if "reward" in settings.inputs.sections and settings.reward_use.loads_models:
        algorithm_copies += reward_copies(stage)
    return algorithm_copies + gold_copies(stage) + section_copies(stage)


def shares_base(stage: Stage) -> bool:
    """Return True if the base of the policy's adapter is also its reference and the base of other adapters.

    The base of a sharded policy is not shared: see training.start.load_policy_twice.
    """
    # with full training the policy has no base that stays unchanged
    trains_adapter = bool(stage.config.model.lora.rank) and stage.config.algorithm.outputs.model
    return trains_adapter and "policy" in stage.needs and not STRATEGIES[strategy(stage)].weights


def _copy_of(model: ModelCopies, stage: Stage, policy: ModelShape) -> Copy:
    """Return the copy of a model that the algorithm's settings name, with its shape."""
    shape = need_shape(stage.needs[model.role]) if model.role else policy
    if model.outputs:
        shape = shape.scalar(model.outputs)
    role: WeightsOf = "reward" if shape.outputs else "reference" if model.reference else "policy"
    stored = stage.config.model.stored(role)
    copy = Copy(model.name, shape, model.trained, model.reference, model.together, stored)
    if model.starts_from == "policy" and shares_base(stage):
        return replace(copy, beside=0)
    if model.starts_from == "reward":  # a critic: its head is trained, so no frozen head is counted
        return _on_base(copy, stage, stage.needs["reward"], stage.config.model.stored("policy"), head=0)
    return copy


def _on_base(copy: Copy, stage: Stage, need: Stage | External, expected: Stored, *, head: int, member: int = 0) -> Copy:
    """Count a reward model, or a critic that starts from it, as an adapter on the policy's base if it can share it.

    Args:
        expected: storage required for its role.
        head: number of values of a frozen head.
    """
    adapter = reward_adapter(stage, need, member) if shares_base(stage) else None
    if adapter is None:
        return copy
    reason = adapter.record.why_separate(adapter.identity, stage.config.model.stored("policy"), expected)
    if reason:
        return replace(copy, apart=reason)
    # on the shared base it only needs its adapter and its head
    return replace(copy, beside=copy.shape.adapter(adapter.rank, adapter.targets) + head)


def reward_copies(stage: Stage) -> list[Copy]:
    """Return the frozen models of the reward, one per member of an ensemble; empty if `needs` lacks one of them."""
    if any(role not in stage.needs for role in stage.config.reward.roles):
        return []
    models = []
    for name, term in stage.config.reward.terms.items():
        if term.needs_role is None or term.reads_run_dir:  # a few numbers per feature, or a model of audio: negligible
            continue
        need = stage.needs[term.needs_role]
        shape = need_shape(need)
        if term.needs_role != "follow_up":  # that role is a language model; all others have a scalar head
            shape = shape.scalar()
        averages_weights = getattr(term, "ensemble", "") == "warm"  # WARM: one model, the mean of the members' weights
        count = 1 if averages_weights else _member_count(need)
        for member in range(count):
            label = f"reward {name} {member}" if count > 1 else f"reward {name}"
            # a language model (`follow_up`) is a policy that only measures
            stored = stage.config.model.stored("reward" if shape.outputs else "policy")
            copy = Copy(label, shape, stored=stored)
            if shape.outputs and not averages_weights:  # averaged weights are a new model without a base
                head = shape.outputs * shape.hidden
                copy = _on_base(copy, stage, need, copy.stored, head=head, member=member)
            models.append(copy)
    return models


def gold_copies(stage: Stage) -> list[Copy]:
    """Return the reward models in `needs.gold`, each member of an ensemble separately; empty without `needs.gold`."""
    need = stage.needs.get(GOLD)
    if need is None:
        return []
    shape = need_shape(need).scalar()
    count = _member_count(need)
    stored = stage.config.model.stored("reward")
    labels = [f"gold {member}" if count > 1 else "gold" for member in range(count)]
    return [Copy(label, shape, stored=stored) for label in labels]


def section_copies(stage: Stage) -> list[Copy]:
    """Return the models that sections of the config load, such as a local judge, each in a single process."""
    sections = stage.config.sections().values()
    sources = [named for section in sections for named in section.local_models(stage.config).items()]
    return [Copy(name, source_shape(source)) for name, source in sources]


def _member_count(need: Stage | External) -> int:
    """Return the number of models of a reward ensemble, from a stage's settings or from the files of a directory."""
    if isinstance(need, Stage) and not Path(need.model).is_dir():
        return getattr(need.config.algorithm, "members", 1)
    other_members = (Path(need.model) / "members").glob("*")  # the first member is the directory itself
    return 1 + sum((path / "config.json").is_file() for path in other_members)


def training(stage: Stage) -> Training:
    """Return the training settings of the stage's trained models."""
    lora = stage.config.model.lora
    stored: Stored = stage.config.model.stored("policy") if lora.rank else "float32"
    return Training(
        # weights that are stored in fewer bits are multiplied in bfloat16
        precision=stage.config.runtime.dtype if stored == "float32" else "bfloat16",
        optimizer=getattr(stage.config.algorithm, "optimizer", None) or "adamw",
        rank=lora.rank,
        targets=lora.targets,
        checkpointing=stage.config.sharding.checkpointing,
        stored=stored,
    )


def response_tokens(stage: Stage) -> int:
    """Return the maximum number of tokens after a sampled prompt: of a response, or of an episode of several turns."""
    return stage.config.rollout.max_tokens_left(stage.config.data.max_turns)


def step_rows(stage: Stage, processes: int) -> Rows:
    """Return one process's rows of an optimizer step, before they are split into micro-batches.

    Half of a corpus row is assumed to be its prompt. The responses of a group share their prompt if a step trains on
    complete groups.
    """
    settings = stage.config.algorithm
    rollout = stage.config.rollout
    units = ceil_div(settings.batch_size, processes)  # responses, or rows or pairs of the corpus
    if settings.reward_use.trains_policy:
        group_size = settings.group_size
        full_groups = group_size > 1 and settings.batch_size == settings.responses
        prompts = ceil_div(units, group_size) if full_groups else 0
        return Rows(units, rollout.max_prompt_tokens, response_tokens(stage), prompts)
    width = settings.max_length
    prompts = units if settings.resources.shares_prompts else 0
    return Rows(settings.rows_per_unit * units, width // 2, width - width // 2, prompts)


def micro_rows(stage: Stage, processes: int) -> Rows:
    """Return the rows of the largest micro-batch: at least one row or pair, within `algorithm.micro_batch_tokens`."""
    settings = stage.config.algorithm
    rows = step_rows(stage, processes)
    limit = settings.micro_batch_tokens
    if not limit or rows.rows * rows.width <= limit:
        return rows
    # a unit, such as a pair, is never split between micro-batches
    units = max(1, limit // (settings.rows_per_unit * rows.width))
    micro_batch = settings.rows_per_unit * units
    prompts = ceil_div(rows.prompts * micro_batch, rows.rows)
    return Rows(micro_batch, rows.prompt, rows.response, prompts)


class SampledBatch(NamedTuple):
    """Rows that the sampler decodes at a time: `group` responses to each of `prompts` prompts.

    `refilled` is True if waiting rows take the places of finished ones.
    """

    prompts: int
    group: int
    refilled: bool

    @property
    def rows(self) -> int:
        return self.prompts * self.group


def sampled(stage: Stage) -> SampledBatch | None:
    """Return the larger batch of rollouts and evaluation, as in `sampling/decoding.py`; None without sampling."""
    limit = stage.config.rollout.batch_rows
    batches = []
    for prompts, group in stage.config.algorithm.sampled(stage.config.evaluation, limit):
        groups = min(prompts, limit // group)
        batch_prompts, batch_group = (groups, group) if groups else (1, min(limit, group))
        is_refilled = (batch_prompts, batch_group) != (prompts, group)  # not all rows fit into one batch
        batches.append(SampledBatch(batch_prompts, batch_group, refilled=is_refilled))
    return max(batches, key=lambda batch: (batch.rows, batch.refilled), default=None)


def scored_rows(stage: Stage, tokens: int) -> Rows:
    """Return the rows of a pass without gradient over `tokens` padded tokens."""
    rollout = stage.config.rollout
    prompt, response = rollout.max_prompt_tokens, response_tokens(stage)
    return Rows(max(1, tokens // (prompt + response)), prompt, response)


def gathered_bytes_to_sample(stage: Stage, models: list[Copy], training: Training, processes: int) -> tuple[int, int]:
    """Return (bytes of a sharded policy that are gathered during all of sampling, bytes gathered block by block).

    These are the full policy and 0, or with `sharding.sampling=block` the part outside the blocks and one block.
    """
    name = strategy(stage)
    policies = [model.shape for model in models if model.trained and not model.shape.outputs]
    if not STRATEGIES[name].weights or processes == 1 or not policies:
        return 0, 0
    shape = policies[0]
    bytes_each = full_number_bytes(training, name, processes)
    if getattr(stage.config.sharding, "sampling", "whole") == "block":
        return bytes_each * shape.root, bytes_each * shape.block
    return bytes_each * shape.parameters, 0


def full_number_bytes(training: Training, name: str, processes: int) -> int:
    """Return the bytes per number of the policy that the sampler reads; FSDP2 gathers it in the dtype of training."""
    rooted = processes > 1 and STRATEGIES[name].rooted
    return 2 if rooted and training.precision == "bfloat16" else 4


def shards(stage: Stage, processes: int) -> int:
    """Return the number of processes that one copy of a sharded model is spread over."""
    return max(1, processes // getattr(stage.config.sharding, "replicas", 1))


def strategy(stage: Stage) -> str:
    """Return the key in `STRATEGIES` of a stage's `sharding`."""
    settings = stage.config.sharding
    if isinstance(settings, FullySharded):
        return "fsdp_full" if settings.reshard_after_forward else "fsdp_grad_op"
    if isinstance(settings, Zero):
        return f"zero{settings.stage}"
    return registry.kind_of("sharding", settings)


@dataclass(frozen=True)
class Trained:
    """An adapter that a stage has trained or will train.

    Attributes:
        record: base that it was trained on.
        identity: identity of the model that the policy starts from, to compare with the record's.
        rank, targets: see `LoRA`.
    """

    record: Record
    identity: str
    rank: int
    targets: Sequence[str] | None


def reward_adapter(stage: Stage, need: Stage | External, member: int = 0) -> Trained | None:
    """Return the adapter of a reward model's member; None if it has no adapter, or one that rlhf_lab did not train."""
    start = stage.needs["policy"]
    directory = Path(need.model, "members", str(member)) if member else Path(need.model)
    adapter = adapter_dir(directory)
    if (adapter / ADAPTER).is_file():
        record = Record.read(adapter)
        settings: Any = read_json(adapter / ADAPTER)
        identity = base_identity(start.model, cached_commit(start.model))
        return Trained(record, identity, settings["r"], settings["target_modules"]) if record else None
    # an external model, or a built stage whose directory has no adapter
    if not isinstance(need, Stage) or directory.is_dir():
        return None
    model = need.config.model
    trained_on = need.needs.get(f"policy_{member}") or need.needs.get("policy")
    if not model.lora.rank or trained_on is None:
        return None
    # stages that are not built have no files yet, so their settings keys are compared instead
    record = Record(trained_on.settings_key, model.stored("policy"))
    return Trained(record, start.settings_key, model.lora.rank, model.lora.targets)
