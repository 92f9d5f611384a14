"""Search for the smallest change of settings with which a run fits, by planning the run with each change."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from rlhf_lab.config import check, registry, root, schema
from rlhf_lab.config.overrides import literal, set_value
from rlhf_lab.core import ranks
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.memory import copies
from rlhf_lab.memory.devices import MOST_DEVICES, Device, processes
from rlhf_lab.memory.plan import StagePlan, plan_stage
from rlhf_lab.models.settings import Scratch
from rlhf_lab.stages import artifacts
from rlhf_lab.stages.artifacts import Stage

Change = dict[str, Any]
"""Overrides by their keys."""
ADAPTER_RANK = 16  # rank of an adapter that is suggested
MICRO = "algorithm.micro_batch_tokens"


@dataclass(frozen=True)
class Suggestion:
    """Overrides in command-line form, and the peak of one process in any stage with them."""

    overrides: list[str]
    peak: int


def smallest_change(
    root: Stage, device: Device, needed: Callable[[Stage], Iterable[Stage]] = Stage.upstream
) -> Suggestion | None:
    """Return a change of a run with which all its stages fit; None if no tried change is sufficient.

    Few settings are tried before many, and settings that only cost time before those that change the arithmetic. After
    these, an adapter instead of all parameters is tried, and fully sharded training on the available devices. Settings
    apply to all stages of the run, except `micro_batch_tokens`. It is changed only for the stages that need it, and is
    as large as possible.

    Args:
        needed: returns the stages of a run that have to fit.
    """

    def try_change(change: Change, smaller_micro_batches: bool) -> Suggestion | None:
        try:
            return _suggestion_if_fits(root, change, smaller_micro_batches, device, needed)
        except ConfigError:  # the settings contradict each other
            return None

    # stage 1 of the search: the mildest family of changes that fits together with all cheap changes
    for family in _families(root, device):
        strongest = family[-1]
        cheap = [change for change in _cheap_changes(root, device) if _is_valid(root, {**change, **strongest})]
        # All changes at once are tried first: if they are not sufficient, no subset is, and the search is skipped.
        everything = _combined([*cheap, strongest])
        if not try_change(everything, True):
            continue
        # stage 2: the smallest combination within that family; the generator stops at the first hit
        attempts = (
            try_change({**change, **member}, smaller)
            for change, smaller in _growing_subsets(cheap)
            for member in family
        )
        return next((hint for hint in attempts if hint), None)
    return None


def _cheap_changes(root: Stage, device: Device) -> list[Change]:
    """Return changes on the same devices with the same trained parameters; those that only cost time come first."""
    settings = root.config
    stages = list(root.upstream())
    changes: list[Change] = []
    if not settings.sharding.checkpointing and any(stage.config.algorithm.outputs.model for stage in stages):
        changes.append({"sharding.checkpointing": True})
    if settings.rollout.batch_rows > 64 and any(copies.sampled(stage) for stage in stages):
        changes.append({"rollout.batch_rows": 64})
    if device.cuda and settings.runtime.dtype == "float32":
        changes.append({"runtime.dtype": "bfloat16"})
    has_reference = any(model.reference for stage in stages for model in copies.copies(stage))
    has_reference |= bool(settings.model.lora.rank)  # a sharded policy with an adapter has a separate reference
    if device.cuda and settings.model.weights == "float32" and any(map(has_frozen_models, stages)):
        changes.append({"model.weights": "bfloat16"})
    if device.cuda and settings.sharding.reference == "resident" and has_reference:
        changes.append({"sharding.reference": "offload"})
    return changes


def has_frozen_models(stage: Stage) -> bool:
    """Return True if a stage holds models whose weights it does not train, such as an adapter's base."""
    trains_adapter = bool(stage.config.model.lora.rank)
    return trains_adapter or any(not model.trained for model in copies.copies(stage))


def _is_valid(root: Stage, change: Change) -> bool:
    """Return True if no stage has contradictory settings."""
    try:
        artifacts.plan(changed(root, change).config, root.recipe)
    except ConfigError:
        return False
    return True


def _growing_subsets(changes: list[Change]) -> Iterator[tuple[Change, bool]]:
    """Yield (combination of changes, True if micro-batches are also made smaller), small combinations first."""
    # few changes before many; the micro-batch counts as one of them
    for size in range(len(changes) + 2):
        for micro in (True, False):
            for subset in combinations(changes, size - micro) if size >= micro else ():
                yield _combined(subset), micro


def _combined(changes: Iterable[Change]) -> Change:
    return {key: value for change in changes for key, value in change.items()}


def _families(root: Stage, device: Device) -> Iterator[list[Change]]:
    """Yield lists of similar changes to combine with `_cheap_changes`: none, an adapter, several devices, both.

    The last change of a list saves the most memory.
    """
    adapter = _adapter_change(root)
    sharded = list(sharding_changes(root, device.limit))
    yield [{}]
    if adapter:
        yield [adapter]
    packed = {**adapter, "model.weights": "nf4"}
    if device.cuda and (adapter or root.config.model.lora.rank) and can_be_packed(root):
        yield [packed]
    if sharded and device.cuda and any(stage.config.algorithm.resources.distributed for stage in root.upstream()):
        yield sharded
        if adapter:
            yield [{**change, **adapter} for change in sharded]


def _adapter_change(root: Stage) -> Change:
    """Return an adapter for all stages except those that train a new model, whose parameters must all be trained.

    Returns an empty change if the run already has an adapter, or itself trains a new model.
    """
    if root.config.model.lora.rank:
        return {}
    from_scratch = isinstance(root.config.model, Scratch)
    new_models = {stage.recipe for stage in root.upstream() if from_scratch and not stage.needs.get("policy")}
    if root.recipe in new_models:
        return {}
    without_adapter = {f"stages.{recipe}.model.lora.rank": 0 for recipe in sorted(new_models)}
    return {"model.lora.rank": ADAPTER_RANK} | without_adapter


def can_be_packed(root: Stage) -> bool:
    """Return True if bitsandbytes can pack the policy's layers; it cannot pack those of GPT-2 and of experts."""
    shape = copies.policy_shape(root)
    return shape.family != "gpt2" and not shape.experts


def sharding_changes(stage: Stage, limit: int) -> Iterator[Change]:
    """Yield fully sharded training on 2, 4, 8, … devices, but not fewer than now; none if a launcher set the number."""
    count = 2
    while count <= limit and ranks.launched() == 1:
        if count >= stage.config.sharding.processes:
            yield {"sharding": "fsdp_full", "sharding.processes": count}
        count *= 2


def _suggestion_if_fits(
    root: Stage, change: Change, smaller_micro_batches: bool, device: Device, needed: Callable[[Stage], Iterable[Stage]]
) -> Suggestion | None:
    """Return the change as a suggestion, with smaller micro-batches where needed; None if a stage does not fit."""
    overrides = dict(change)
    peak = 0
    for stage in needed(artifacts.plan(changed(root, change).config, root.recipe)):
        micro_changes = [{}, *micro_batch_changes(stage, device)] if smaller_micro_batches else [{}]
        for micro_change in micro_changes:
            plan = _plan_if_fits(stage, micro_change, device)
            if plan:
                break
        else:
            return None
        is_root = stage.key == root.key or stage.recipe == root.recipe
        prefix = "" if is_root else f"stages.{stage.recipe}."
        for key, value in micro_change.items():
            # stages with the same recipe share the setting, so the smallest value is used
            previous = overrides.get(prefix + key, value)
            overrides[prefix + key] = min(value, previous)
        peak = max(peak, plan.peak)
    return Suggestion([f"{key}={literal(value)}" for key, value in overrides.items()], peak)


def micro_batch_changes(stage: Stage, device: Device) -> Iterator[Change]:
    """Yield micro-batches halved again and again, down to one row or pair."""
    if not stage.config.algorithm.outputs.model:
        return
    rows = copies.micro_rows(stage, processes(stage.config, device))
    tokens = rows.rows * rows.width
    smallest = stage.config.algorithm.rows_per_unit * rows.width
    while tokens > smallest:
        tokens = max(tokens // 2, smallest)
        yield {MICRO: tokens}


def changed(stage: Stage, change: Change) -> Stage:
    """Return the stage with other settings and the same upstream. Raises ConfigError for contradictory settings."""
    values = root.to_values(stage.config)
    for key, value in change.items():
        if key == "sharding":
            values[key] = _fully_sharded(values[key])
        else:
            set_value(values, key, value)
    return dataclasses.replace(stage, config=check.check(values))


def _fully_sharded(now: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of `sharding=fsdp_full`, with the values of settings that all kinds of sharding have."""
    defaults = schema.defaults(registry.settings_class("sharding", "fsdp"))
    shared: dict[str, Any] = {name: now[name] for name in ("checkpointing", "reference") if name in now}
    return {"kind": "fsdp", **defaults, **shared}


def _plan_if_fits(stage: Stage, change: Change, device: Device) -> StagePlan | None:
    """Return the plan of a changed stage if it fits the device; None if it does not, or if settings are invalid."""
    try:
        changed_stage = changed(stage, change) if change else stage
    except ConfigError:  # the change contradicts another setting of the stage
        return None
    count = processes(changed_stage.config, device)
    plan = plan_stage(changed_stage, count, cuda=device.cuda)
    memory_limit = device.share(count)
    return plan if memory_limit is not None and plan.peak <= memory_limit else None


def min_devices(stage: Stage, memory: int, *, frugal: bool = False) -> int | None:
    """Return the minimum number of GPUs of `memory` bytes, in powers of two; 1 is a single process without sharding.

    Args:
        frugal: True for bfloat16, activation checkpointing, one row or pair at a time, and 64 sampled responses.
    """
    card = Device("card", memory, cuda=True)
    single = stage.config.replace(sharding=registry.settings_class("sharding", "none")())
    alone = dataclasses.replace(stage, config=single)
    savings = _frugal_change(alone) if frugal else {}
    if _plan_if_fits(alone, savings, card):
        return 1
    if not stage.config.algorithm.resources.distributed:
        return None
    # sharding_changes yields few devices first, so the first that fits is the minimum
    for change in sharding_changes(alone, MOST_DEVICES):
        if _plan_if_fits(alone, {**change, **savings}, card):
            return int(change["sharding.processes"])
    return None


def _frugal_change(stage: Stage) -> Change:
    change: Change = {"runtime.dtype": "bfloat16", "rollout.batch_rows": min(64, stage.config.rollout.batch_rows)}
    if stage.config.algorithm.outputs.model:
        tokens = stage.config.algorithm.rows_per_unit * copies.step_rows(stage, 1).width
        change |= {MICRO: tokens, "sharding.checkpointing": True}
    return change
