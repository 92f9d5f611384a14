"""Adaptation of a stage to the device with settings that change memory and time but no result: `runtime.fit=auto`.

A stage that fits keeps its settings. Otherwise it samples fewer rows at a time. If a sharded policy does not fit even
with one group of rows, it is gathered block by block (`sharding.sampling`). The stage trains with smaller
micro-batches, and if one row at a time is still too large, it keeps no activations (`sharding.checkpointing`). These
settings are not part of a stage's key, because results are equal up to the rounding of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rlhf_lab.config import registry
from rlhf_lab.config.overrides import literal
from rlhf_lab.config.root import Config
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.memory import copies
from rlhf_lab.memory.devices import Device, device, processes
from rlhf_lab.memory.fit import Change, changed, micro_batch_changes, smallest_change
from rlhf_lab.memory.plan import StagePlan, plan_stage
from rlhf_lab.memory.show import size
from rlhf_lab.stages.artifacts import Stage
from rlhf_lab.stages.preflight import unbuilt
from rlhf_lab.training.sharding.settings import FullySharded

ROWS = "rollout.batch_rows"
CHECKPOINTING = "sharding.checkpointing"
SAMPLING = "sharding.sampling"


def fitted(stage: Stage) -> tuple[Config, str]:
    """Return (config with which to compute a stage, text of the changes); the text is empty without changes.

    Nothing is changed if no such change makes the stage fit, or if a model's shape is unknown.
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
    available = machine.share(plan.processes)
    return changed(stage, change).config, f"{settings} ({size(plan.peak)} of {size(available)})"


def neutral_change(stage: Stage, machine: Device) -> tuple[Change, StagePlan | None]:
    """Return the mildest change with which a stage fits, and its plan with that change.

    Returns ({}, plan) if the stage fits unchanged, and ({}, None) if no change is sufficient. Raises ConfigError for an
    unknown shape.
    """
    count = processes(stage.config, machine)
    memory_limit = machine.share(count)
    if memory_limit is None:
        return {}, None

    def plan_with(change: Change) -> StagePlan:
        return plan_stage(changed(stage, change) if change else stage, count, cuda=machine.cuda)

    written = plan_with({})
    if written.peak <= memory_limit:
        return {}, written
    rows = _to_sample(stage, plan_with, memory_limit)
    # smaller micro-batches and checkpointing do not help if the models or the sampler alone are too large
    if written.floor > memory_limit or plan_with(rows).phases.get("sampling", 0) > memory_limit:
        return {}, None
    for change in _changes(stage, machine, rows):
        plan = plan_with(change)
        if plan.peak <= memory_limit:
            return change, plan
    return {}, None


def _changes(stage: Stage, machine: Device, rows: Change) -> Iterator[Change]:
    """Yield changes to try: `rows` with ever smaller micro-batches, then the same with activation checkpointing."""
    can_checkpoint = stage.config.algorithm.outputs.model and not stage.config.sharding.checkpointing
    checkpointings: list[Change] = [{}, {CHECKPOINTING: True}] if can_checkpoint else [{}]
    for checkpointing in checkpointings:  # used only if no micro-batch fits without it
        yield {**rows, **checkpointing}
        for micro in micro_batch_changes(stage, machine):
            yield {**rows, **checkpointing, **micro}


def _to_sample(stage: Stage, plan_with: Callable[[Change], StagePlan], share: int) -> Change:
    """Return the change that makes sampling fit next to the models: fewer rows, or also gathering block by block."""
    sampled = copies.sampled(stage)
    if sampled is None:
        return {}
    fewer = _fewer_rows(stage, sampled, {}, plan_with, share)
    # only the built-in sampler can read a model block by block
    is_local = registry.kind_of("rollout", stage.config.rollout) == "local"
    if fewer is None and is_local and isinstance(stage.config.sharding, FullySharded):
        fewer = _fewer_rows(stage, sampled, {SAMPLING: "block"}, plan_with, share)
    return {ROWS: 1} if fewer is None else fewer


def _fewer_rows(
    stage: Stage, sampled: copies.SampledBatch, beside: Change, plan_with: Callable[[Change], StagePlan], share: int
) -> Change | None:
    """Halve the number of sampled rows until sampling fits, and return the change; None if one row does not fit.

    Args:
        beside: another change, which is part of the result.
    """
    rows = sampled.rows
    while True:
        change = dict(beside)
        if rows < stage.config.rollout.batch_rows:  # otherwise the setting limits nothing
            change[ROWS] = rows
        if plan_with(change).phases.get("sampling", 0) <= share:
            return change
        if rows == 1:
            return None
        rows //= 2


def memory_lines(root: Stage) -> list[str]:
    """Return a line about the stage with the highest demand, and one about changes if not all stages fit.

    Raises ConfigError if weights, gradients and optimizer state of a stage alone exceed the device's memory. All other
    memory depends on actual row lengths, and is never a reason to refuse.
    """
    machine = device(root.config)
    try:
        plans = [plan_stage(stage, processes(stage.config, machine), cuda=machine.cuda) for stage in unbuilt(root)]
    except ConfigError as error:  # the shape of a model is unknown, so the run starts without a plan
        return [f"memory unknown: {error}"]
    # only the certain part of the memory is a reason to refuse
    problems = [
        f"{plan.recipe} cannot fit: weights, gradients and optimizer state need {size(plan.floor)}, but "
        f"{machine.name} has {size(machine.share(plan.processes))}"
        for plan in plans
        if plan.floor > _fraction(plan, machine)
    ]
    if problems:
        raise ConfigError([*problems, _suggestion_text(machine, root)])
    if not any(plan.peak for plan in plans):  # all stages are built, or hold no models
        return []
    # the stage that is closest to its limit, which need not be the one with the highest peak
    largest = max(plans, key=lambda plan: plan.peak / _fraction(plan, machine))
    memory_limit = machine.share(largest.processes)
    available = f"; there are {size(memory_limit)}" if memory_limit else ""
    lines = [f"models: {size(largest.peak)} at most, in {largest.recipe}{available}"]
    too_large = [plan.stage for plan in plans if plan.peak > _fraction(plan, machine)]
    changed_to_fit = {stage.recipe: fitted(stage)[1] for stage in too_large}
    if too_large and all(changed_to_fit.values()):
        stated = "; ".join(f"{recipe}: {change}" for recipe, change in changed_to_fit.items())
        lines.append(f"settings changed to fit (runtime.fit=none keeps them): {stated}")
    elif too_large:
        lines.append(f"memory may not suffice if rows reach their maximum length; {_suggestion_text(machine, root)}")
    return lines


def _fraction(plan: StagePlan, machine: Device) -> float:
    """Return the bytes available to one process of a stage; infinite if unknown."""
    memory_limit = machine.share(plan.processes)
    return float("inf") if memory_limit is None else memory_limit


def _suggestion_text(machine: Device, root: Stage) -> str:
    """Return the change with which all stages fit, as text."""
    hint = smallest_change(root, machine, unbuilt)
    if hint is None:
        return (
            "no tried settings make it fit; use a smaller model, or list the GPUs that it needs with "
            f"python -m rlhf_lab plan +recipe={root.recipe} … cards=24,80"
        )
    return f"it fits with {' '.join(hint.overrides)} ({size(hint.peak)})"
