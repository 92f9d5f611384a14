"""Messages about memory that every run prints before it loads weights, and with which it refuses to start."""

from __future__ import annotations

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.memory.device import Device, device, processes
from rlhf_lab.memory.fit import smallest_change
from rlhf_lab.memory.neutral import fitted
from rlhf_lab.memory.plan import StagePlan, plan_stage
from rlhf_lab.memory.show import size
from rlhf_lab.stages.artifacts import Stage
from rlhf_lab.stages.preflight import unbuilt


def memory_lines(root: Stage) -> list[str]:
    """Return a line about the stage with the highest demand, and one about changes if not all stages fit.

    Raises ConfigError if weights, gradients and optimizer state of a stage alone exceed the device's memory. All other
    memory depends on actual row lengths, and is never a reason to refuse.
    """
    machine = device(root.config)
    try:
        plans = []
        for stage in unbuilt(root):
            count = processes(stage.config, machine)
            plans.append(plan_stage(stage, count, cuda=machine.cuda))
    except ConfigError as error:  # the shape of a model is unknown, so the run starts without a plan
        return [f"memory unknown: {error}"]
    # only the certain part of the memory is a reason to refuse
    impossible = [plan for plan in plans if plan.floor > _fraction(plan, machine)]
    problems = [_refusal(plan, machine) for plan in impossible]
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


def _refusal(plan: StagePlan, machine: Device) -> str:
    return (
        f"{plan.recipe} cannot fit: weights, gradients and optimizer state need {size(plan.floor)}, but "
        f"{machine.name} has {size(machine.share(plan.processes))}"
    )


def _suggestion_text(machine: Device, root: Stage) -> str:
    """Return the change with which all stages fit, as text."""
    hint = smallest_change(root, machine, unbuilt)
    if hint is None:
        return (
            "no tried settings make it fit; use a smaller model, or list the GPUs that it needs with "
            f"python -m rlhf_lab plan +recipe={root.recipe} … cards=24,80"
        )
    return f"it fits with {' '.join(hint.overrides)} ({size(hint.peak)})"
