"""Settings of a stage that change memory and time but no result, made to fit the device: `runtime.fit=auto`.

A stage that fits as it is written keeps its settings. Else it samples fewer rows at once, and where a divided policy
does not fit whole even for one group of them, gathers it block by block (`sharding.sampling`); it trains on smaller
micro-batches, and if one row at a time is still too much, keeps no activations (`sharding.checkpointing`). What a stage
computes with is no part of its key: results are the same to the rounding of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rlhf_lab.config import registry
from rlhf_lab.config.overrides import literal
from rlhf_lab.config.root import Config
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.memory import copies
from rlhf_lab.memory.device import Device, device, processes
from rlhf_lab.memory.fit import Change, changed, micro_batch_changes
from rlhf_lab.memory.plan import StagePlan, plan_stage
from rlhf_lab.memory.show import size
from rlhf_lab.stages.artifacts import Stage
from rlhf_lab.training.sharding.settings import FullySharded

ROWS = "rollout.batch_rows"
CHECKPOINTING = "sharding.checkpointing"
BY_BLOCK: Change = {"sharding.sampling": "block"}


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
    rows = _to_sample(stage, plan_with, share)
    # neither smaller micro-batches nor checkpointing help where the models or the sampler alone are too large
    if written.floor > share or plan_with(rows).phases.get("sampling", 0) > share:
        return {}, None
    for change in _changes(stage, machine, rows):
        plan = plan_with(change)
        if plan.peak <= share:
            return change, plan
    return {}, None


def _changes(stage: Stage, machine: Device, rows: Change) -> Iterator[Change]:
    """Combinations of changes: what makes sampling fit, then ever smaller micro-batches."""
    for checkpointing in _checkpointing(stage):
        yield {**rows, **checkpointing}
        for micro in micro_batch_changes(stage, machine):
            yield {**rows, **checkpointing, **micro}


def _to_sample(stage: Stage, plan_with: Callable[[Change], StagePlan], share: int) -> Change:
    """What makes sampling fit beside the models: fewer rows, else a divided policy gathered block by block."""
    sampled = copies.sampled(stage)
    if sampled is None:
        return {}
    fewer = _fewer_rows(stage, sampled, {}, plan_with, share)
    is_local = registry.kind_of("rollout", stage.config.rollout) == "local"
    if fewer is None and is_local and isinstance(stage.config.sharding, FullySharded):
        fewer = _fewer_rows(stage, sampled, BY_BLOCK, plan_with, share)
    return {ROWS: 1} if fewer is None else fewer


def _fewer_rows(
    stage: Stage,
    sampled: copies.SampledBatch,
    beside: Change,
    plan_with: Callable[[Change], StagePlan],
    share: int,
) -> Change | None:
    """The most rows, halved down to one, whose sampling fits beside the models; None where one row does not.

    Args:
        beside: another change, which is part of the result.
    """
    rows = sampled.rows
    while True:
        change = {**beside, **({ROWS: rows} if rows < stage.config.rollout.batch_rows else {})}
        if plan_with(change).phases.get("sampling", 0) <= share:
            return change
        if rows == 1:
            return None
        rows //= 2


def _checkpointing(stage: Stage) -> Iterator[dict[str, Any]]:
    """Without and with activation checkpointing, where it is not on already."""
    yield {}
    if stage.config.algorithm.makes_model and not stage.config.sharding.checkpointing:
        yield {CHECKPOINTING: True}
