"""Settings of a stage that change memory and time but no result, made to fit the device: `runtime.fit=auto`.

A stage that fits as it is written keeps its settings. Else it samples fewer rows at once, trains on smaller
micro-batches, and if one row at a time is still too much, keeps no activations (`sharding.checkpointing`). What a stage
computes with is no part of its key: results are the same to the rounding of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rlhf_lab.config.overrides import literal
from rlhf_lab.config.root import Config
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.memory import copies
from rlhf_lab.memory.device import Device, device, processes
from rlhf_lab.memory.fit import Change, changed, micro_batch_changes
from rlhf_lab.memory.plan import StagePlan, plan_stage
from rlhf_lab.memory.show import size
from rlhf_lab.stages.artifacts import Stage

ROWS = "rollout.batch_rows"
CHECKPOINTING = "sharding.checkpointing"


def fitted(stage: Stage) -> tuple[Config, str]:
    """(the config to compute a stage with, what was changed in it), the latter empty where nothing was.

    Nothing is changed either where no change of this kind makes the stage fit, or a model's shape is unknown.
    """
    if not stage.config.fits_itself:
        return stage.config, ""
    machine = device(stage.config)
    try:
        change, plan = neutral_change(stage, machine)
    except ConfigError:  # the shape of a model is unknown
        return stage.config, ""
    if not change or plan is None:
        return stage.config, ""
    settings = " ".join(f"{key}={literal(value)}" for key, value in change.items())
    return changed(stage, change).config, f"{settings} ({size(plan.peak)} of {size(machine.share(plan.processes))})"


def neutral_change(stage: Stage, machine: Device) -> tuple[Change, StagePlan | None]:
    """The first of the changes, mildest first, with which a stage fits, and its plan then.

    ({}, its plan) where it fits as it is, ({}, None) where none helps. Raises ConfigError for an unknown shape.
    """
    count = processes(stage.config, machine)
    share = machine.share(count)
    if share is None:
        return {}, None

    def plan_with(change: Change) -> StagePlan:
        return plan_stage(changed(stage, change) if change else stage, count, cuda=machine.cuda)

    written = plan_with({})
    if written.peak <= share:
        return {}, written
    rows = _fewer_rows(stage, plan_with, share)
    # neither smaller micro-batches nor checkpointing help where the models or the sampler alone are too large
    if written.floor > share or plan_with(rows).phases.get("sampling", 0) > share:
        return {}, None
    for change in _changes(stage, machine, rows):
        plan = plan_with(change)
        if plan.peak <= share:
            return change, plan
    return {}, None


def _changes(stage: Stage, machine: Device, rows: Change) -> Iterator[Change]:
    """Combinations of changes: fewer rows sampled at once, then ever smaller micro-batches."""
    for checkpointing in _checkpointing(stage):
        yield {**rows, **checkpointing}
        for micro in micro_batch_changes(stage, machine):
            yield {**rows, **checkpointing, **micro}


def _fewer_rows(stage: Stage, plan_with: Callable[[Change], StagePlan], share: int) -> Change:
    """The most rows, halved again and again, whose sampling fits beside the models; none where all of them do."""
    sampled = copies.sampled(stage)
    if sampled is None:
        return {}
    group = sampled[1]
    rows = sampled[0] * group
    while rows > group:
        change = {ROWS: rows} if rows < stage.config.rollout.batch_rows else {}
        if plan_with(change).phases.get("sampling", 0) <= share:
            return change
        rows = max(rows // 2, group)
    return {ROWS: rows}


def _checkpointing(stage: Stage) -> Iterator[dict[str, Any]]:
    """Without and with activation checkpointing, where it is not on already."""
    yield {}
    if stage.config.algorithm.makes_model and not stage.config.sharding.checkpointing:
        yield {CHECKPOINTING: True}
