"""The smallest change of settings with which a run fits, found by planning the run again with each change."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from rlhf_lab.config import check, registry, root, schema
from rlhf_lab.config.overrides import literal, put
from rlhf_lab.core import ranks
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.memory import copies
from rlhf_lab.memory.device import Device, processes
from rlhf_lab.memory.devices import MOST_DEVICES
from rlhf_lab.memory.plan import StagePlan, plan_stage
from rlhf_lab.models.settings import Scratch
from rlhf_lab.stages import artifacts
from rlhf_lab.stages.artifacts import Stage

Change = dict[str, Any]
"""Overrides by their keys."""
ADAPTER_RANK = 16
MICRO = "algorithm.micro_batch_tokens"


@dataclass(frozen=True)
class Advice:
    """Overrides as the command line takes them, and the most bytes that a process then needs in any stage."""

    overrides: list[str]
    peak: int


def smallest_change(
    root: Stage, device: Device, needed: Callable[[Stage], Iterable[Stage]] = Stage.upstream
) -> Advice | None:
    """One change of a run with which all its stages fit; None where none of those tried does.

    Changes are tried in this order: few settings before many, and settings that only cost time before those that change
    the arithmetic; then an adapter in place of all parameters; then fully sharded training on no more devices than
    there are. Settings hold for all stages of the run, except `micro_batch_tokens`, which is changed for the stages
    that need it and is as large as fits.

    Args:
        needed: the stages of a run that have to fit.
    """

    def try_change(change: Change, smaller_micro_batches: bool) -> Advice | None:
        try:
            return _advice_if_fits(root, change, smaller_micro_batches, device, needed)
        except ConfigError:  # settings that do not go together
            return None

    for family in _families(root, device):
        strongest = family[-1]
        cheap = [change for change in _cheap_changes(root, device) if _is_valid(root, {**change, **strongest})]
        # Everything at once first: where that does not fit, no subset does and the search is skipped.
        everything = {key: value for change in (*cheap, strongest) for key, value in change.items()}
        if not try_change(everything, True):
            continue
        attempts = (
            try_change({**change, **member}, smaller)
            for change, smaller in _growing_subsets(cheap)
            for member in family
        )
        return next((advice for advice in attempts if advice), None)
    return None


def _cheap_changes(root: Stage, device: Device) -> list[Change]:
    """Changes that need no further device and train the same parameters. Those that only cost time come first."""
    settings = root.config
    stages = list(root.upstream())
    changes: list[Change] = []
    if not settings.sharding.checkpointing and any(stage.config.algorithm.makes_model for stage in stages):
        changes.append({"sharding.checkpointing": True})
    if settings.rollout.batch_rows > 64 and any(copies.sampled(stage) for stage in stages):
        changes.append({"rollout.batch_rows": 64})
    if device.cuda and settings.runtime.dtype == "float32":
        changes.append({"runtime.dtype": "bfloat16"})
    has_reference = any(model.reference for stage in stages for model in copies.copies(stage))
    has_reference |= bool(settings.model.lora.rank)  # an adapter has one once its base is divided
    if device.cuda and settings.model.weights == "float32" and any(map(has_frozen_models, stages)):
        changes.append({"model.weights": "bfloat16"})
    if device.cuda and settings.sharding.reference == "resident" and has_reference:
        changes.append({"sharding.reference": "offload"})
    return changes


def has_frozen_models(stage: Stage) -> bool:
    """Whether a stage holds models whose weights it does not train; an adapter's base is one."""
    return bool(stage.config.model.lora.rank) or any(not model.trained for model in copies.copies(stage))


def _is_valid(root: Stage, change: Change) -> bool:
    """Whether the settings go together in all stages."""
    try:
        artifacts.plan(changed(root, change).config, root.recipe)
    except ConfigError:
        return False
    return True


def _growing_subsets(changes: list[Change]) -> Iterator[tuple[Change, bool]]:
    """Combinations of changes, from none to all. The flag says whether smaller micro-batches are one of them."""
    for size in range(len(changes) + 2):
        for micro in (True, False):
            for subset in combinations(changes, size - micro) if size >= micro else ():
                yield {key: value for change in subset for key, value in change.items()}, micro


def _families(root: Stage, device: Device) -> Iterator[list[Change]]:
    """Changes to combine with the cheap ones, mild first: nothing, an adapter, several devices, both.

    Within a family the last change saves the most memory.
    """
    adapter = _adapter_change(root)
    sharded = list(sharding_changes(root, device.most))
    yield [{}]
    if adapter:
        yield [adapter]
    packed = {**adapter, "model.weights": "nf4"}
    if device.cuda and (adapter or root.config.model.lora.rank) and can_be_packed(root):
        yield [packed]
    if sharded and device.cuda and any(stage.config.algorithm.shares_work for stage in root.upstream()):
        yield sharded
        if adapter:
            yield [{**change, **adapter} for change in sharded]


def _adapter_change(root: Stage) -> Change:
    """An adapter for all stages, except those that train a new model, all of which has to be trained.

    Empty where the run has an adapter already, or trains a new model itself.
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
    """Whether the policy's layers are ones that bitsandbytes packs: those of GPT-2 and of experts are not."""
    shape = copies.policy_shape(root)
    return shape.family != "gpt2" and not shape.experts


def sharding_changes(stage: Stage, most: int) -> Iterator[Change]:
    """Fully sharded training on 2, 4, 8, … devices, no fewer than now; none where a launcher set their number."""
    count = 2
    while count <= most and ranks.launched() == 1:
        if count >= stage.config.sharding.processes:
            yield {"sharding": "fsdp_full", "sharding.processes": count}
        count *= 2


def _advice_if_fits(
    root: Stage,
    change: Change,
    smaller_micro_batches: bool,
    device: Device,
    needed: Callable[[Stage], Iterable[Stage]],
) -> Advice | None:
    """The change, with smaller micro-batches for stages that need them; None where a stage does not fit."""
    overrides = dict(change)
    peak = 0
    for stage in needed(artifacts.plan(changed(root, change).config, root.recipe)):
        micro_changes = [{}, *micro_batch_changes(stage, device)] if smaller_micro_batches else [{}]
        fitting = ((micro, plan) for micro in micro_changes if (plan := _plan_if_fits(stage, micro, device)))
        micro_change, plan = next(fitting, ({}, None))
        if plan is None:
            return None
        is_root = stage.key == root.key or stage.recipe == root.recipe
        prefix = "" if is_root else f"stages.{stage.recipe}."
        for key, value in micro_change.items():
            # a recipe may stand for several stages: the smallest value fits all of them
            overrides[prefix + key] = min(value, overrides.get(prefix + key, value))
        peak = max(peak, plan.peak)
    return Advice([f"{key}={literal(value)}" for key, value in overrides.items()], peak)


def micro_batch_changes(stage: Stage, device: Device) -> Iterator[Change]:
    """Micro-batches halved again and again, down to one row or pair."""
    if not stage.config.algorithm.makes_model:
        return
    rows = copies.micro_rows(stage, processes(stage.config, device))
    tokens = rows.rows * rows.width
    least = stage.config.algorithm.rows_per_unit * rows.width
    while tokens > least:
        tokens = max(tokens // 2, least)
        yield {MICRO: tokens}


def changed(stage: Stage, change: Change) -> Stage:
    """The stage with other settings; what it starts from stays. Raises ConfigError where they do not go together."""
    values = root.to_values(stage.config)
    for key, value in change.items():
        if key == "sharding":
            values[key] = _fully_sharded(values[key])
        else:
            put(values, key, value)
    return dataclasses.replace(stage, config=check.check(values))


def _fully_sharded(now: dict[str, Any]) -> dict[str, Any]:
    """`sharding=fsdp_full`, keeping the settings that all kinds of sharding have."""
    defaults = schema.defaults(registry.settings_class("sharding", "fsdp"))
    shared: dict[str, Any] = {name: now[name] for name in ("checkpointing", "reference") if name in now}
    return {"kind": "fsdp", **defaults, **shared}


def _plan_if_fits(stage: Stage, change: Change, device: Device) -> StagePlan | None:
    """The plan of a changed stage where it fits the device; None where it does not, or the settings are wrong."""
    try:
        changed_stage = changed(stage, change) if change else stage
    except ConfigError:
        return None
    count = processes(changed_stage.config, device)
    plan = plan_stage(changed_stage, count, cuda=device.cuda)
    share = device.share(count)
    return plan if share is not None and plan.peak <= share else None


def least_devices(stage: Stage, memory: int, *, frugal: bool = False) -> int | None:
    """Fewest fully sharded processes, in powers of two, on GPUs of `memory` bytes; 1 is a single one, not sharded.

    Args:
        frugal: with bfloat16, activation checkpointing, one row or pair at a time, and 64 sampled replies.
    """
    card = Device("card", memory, cuda=True)
    single = stage.config.replace(sharding=registry.settings_class("sharding", "none")())
    alone = dataclasses.replace(stage, config=single)
    savings = _frugal_change(alone) if frugal else {}
    if _plan_if_fits(alone, savings, card):
        return 1
    if not stage.config.algorithm.shares_work:
        return None
    for change in sharding_changes(alone, MOST_DEVICES):
        if _plan_if_fits(alone, {**change, **savings}, card):
            return int(change["sharding.processes"])
    return None


def _frugal_change(stage: Stage) -> Change:
    """The settings of `least_devices(frugal=True)`."""
    change: Change = {"runtime.dtype": "bfloat16", "rollout.batch_rows": min(64, stage.config.rollout.batch_rows)}
    if stage.config.algorithm.makes_model:
        tokens = stage.config.algorithm.rows_per_unit * copies.step_rows(stage, 1).width
        change |= {MICRO: tokens, "sharding.checkpointing": True}
    return change
