"""The smallest change that makes a run fit, found by planning it again with each change."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from rlhf_lab.config import registry, root, schema
from rlhf_lab.config.overrides import literal, put
from rlhf_lab.core import ranks
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.memory import copies as held
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
    """One change of a run with which all its stages fit; None where nothing that is tried does.

    Fewer settings come before more, and what costs time alone before what changes arithmetic; then an adapter in place
    of all parameters; then fully sharded training on no more devices than there are. Settings of the run hold for all
    its stages; `micro_batch_tokens` is of the stages that need it, as large as may be.

    Args:
        needed: the stages of a run that have to fit.
    """

    def tried(change: Change, micro: bool) -> Advice | None:
        try:
            return _advice(root, change, micro, device, needed)
        except ConfigError:  # settings that do not go together
            return None

    for family in _families(root, device):
        free = [change for change in _free(root, device) if _valid(root, {**change, **family[-1]})]
        everything = {key: value for change in (*free, family[-1]) for key, value in change.items()}
        if not tried(everything, True):
            continue
        found = (tried({**change, **more}, micro) for change, micro in _growing(free) for more in family)
        return next((advice for advice in found if advice), None)
    return None


def _free(root: Stage, device: Device) -> list[Change]:
    """Settings of a run that need no further device and train the same parameters; time first, then arithmetic."""
    settings, stages = root.config, list(root.upstream())
    found: list[Change] = []
    if not settings.sharding.checkpointing and any(stage.config.algorithm.makes_model for stage in stages):
        found.append({"sharding.checkpointing": True})
    if settings.rollout.batch_rows > 64 and any(held.sampled(stage) for stage in stages):
        found.append({"rollout.batch_rows": 64})
    if device.cuda and settings.runtime.dtype == "float32":
        found.append({"runtime.dtype": "bfloat16"})
    references = any(model.reference for stage in stages for model in held.copies(stage))
    references |= bool(settings.model.lora.rank)  # an adapter has one once its base is divided
    if device.cuda and settings.sharding.reference == "resident" and references:
        found.append({"sharding.reference": "offload"})
    return found


def _valid(root: Stage, change: Change) -> bool:
    """Whether the settings go together in all stages."""
    try:
        artifacts.plan(changed(root, change).config, root.recipe)
    except ConfigError:
        return False
    return True


def _growing(free: list[Change]) -> Iterator[tuple[Change, bool]]:
    """Sets of settings from small to large; the flag says whether smaller micro-batches are one of them."""
    for size in range(len(free) + 2):
        for micro in (True, False):
            for chosen in combinations(free, size - micro) if size >= micro else ():
                yield {key: value for change in chosen for key, value in change.items()}, micro


def _families(root: Stage, device: Device) -> Iterator[list[Change]]:
    """What goes with the free settings, mild first: nothing, an adapter, several devices, both."""
    adapter, sharded = _adapter(root), list(_sharded(root, device.most))
    yield [{}]
    if adapter:
        yield [adapter]
    if sharded and device.cuda and any(stage.config.algorithm.shares_work for stage in root.upstream()):
        yield sharded
        if adapter:
            yield [{**change, **adapter} for change in sharded]


def _adapter(root: Stage) -> Change:
    """An adapter for all stages but those that train a new model, which have to be whole; empty where there is one."""
    if root.config.model.lora.rank:
        return {}
    scratch = isinstance(root.config.model, Scratch)
    new = {stage.recipe for stage in root.upstream() if scratch and not stage.needs.get("policy")}
    if root.recipe in new:
        return {}
    return {"model.lora.rank": ADAPTER_RANK} | {f"stages.{recipe}.model.lora.rank": 0 for recipe in sorted(new)}


def _sharded(stage: Stage, most: int) -> Iterator[Change]:
    """Fully sharded training on 2, 4, 8, … devices, no fewer than now; a launcher's number is its own affair."""
    count = 2
    while count <= most and ranks.launched() == 1:
        if count >= stage.config.sharding.processes:
            yield {"sharding": "fsdp_full", "sharding.processes": count}
        count *= 2


def _advice(
    root: Stage, change: Change, micro: bool, device: Device, needed: Callable[[Stage], Iterable[Stage]]
) -> Advice | None:
    """The change, with the micro-batches of stages that do not fit without; None where one does not fit."""
    change, peak = dict(change), 0
    for stage in needed(artifacts.plan(changed(root, change).config, root.recipe)):
        ways = [{}, *_smaller(stage, device)] if micro else [{}]
        way, found = next(((way, found) for way in ways if (found := _fits(stage, way, device))), ({}, None))
        if found is None:
            return None
        own = "" if stage.key == root.key or stage.recipe == root.recipe else f"stages.{stage.recipe}."
        for key, value in way.items():
            change[own + key] = min(value, change.get(own + key, value))
        peak = max(peak, found.peak)
    return Advice([f"{key}={literal(value)}" for key, value in change.items()], peak)


def _smaller(stage: Stage, device: Device) -> Iterator[Change]:
    """Micro-batches halved down to one row or pair."""
    if not stage.config.algorithm.makes_model:
        return
    rows = held.micro_rows(stage, processes(stage.config, device))
    tokens, least = rows.rows * rows.width, stage.config.algorithm.rows_per_unit * rows.width
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
    return dataclasses.replace(stage, config=root.check(values))


def _fully_sharded(now: dict[str, Any]) -> dict[str, Any]:
    """`sharding=fsdp_full` with the settings that other kinds have too."""
    defaults = schema.defaults(registry.settings_class("sharding", "fsdp"))
    return {"kind": "fsdp", **defaults, **{k: now[k] for k in ("checkpointing", "reference") if k in now}}


def _fits(stage: Stage, change: Change, device: Device) -> StagePlan | None:
    try:
        other = changed(stage, change) if change else stage
    except ConfigError:
        return None
    count = processes(other.config, device)
    found = plan_stage(other, count, cuda=device.cuda)
    share = device.share(count)
    return found if share is not None and found.peak <= share else None


def least_devices(stage: Stage, memory: int, *, frugal: bool = False) -> int | None:
    """Fewest fully sharded processes, in powers of two, on GPUs of `memory` bytes; 1 is a single one, not sharded.

    Args:
        frugal: with bfloat16, activation checkpointing, one row or pair at a time, and 64 sampled replies.
    """
    card = Device("card", memory, cuda=True)
    single = dataclasses.replace(stage.config, sharding=registry.settings_class("sharding", "none")())
    alone = dataclasses.replace(stage, config=single)
    saving = _frugal(alone) if frugal else {}
    if _fits(alone, saving, card):
        return 1
    if not stage.config.algorithm.shares_work:
        return None
    counts = (change for change in _sharded(alone, MOST_DEVICES) if _fits(alone, {**change, **saving}, card))
    return next((int(change["sharding.processes"]) for change in counts), None)


def _frugal(stage: Stage) -> Change:
    """What costs time alone."""
    found: Change = {"runtime.dtype": "bfloat16", "rollout.batch_rows": min(64, stage.config.rollout.batch_rows)}
    if stage.config.algorithm.makes_model:
        tokens = stage.config.algorithm.rows_per_unit * held.step_rows(stage, 1).width
        found |= {MICRO: tokens, "sharding.checkpointing": True}
    return found
