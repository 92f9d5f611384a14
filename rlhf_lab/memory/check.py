"""The lines on memory that every run prints before it loads weights, and when it refuses to start."""

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
    """One line on the most demanding stage, and one on what to change where not all fit; none where all are built.

    Raises ConfigError when the weights, gradients and moments of a stage alone are more than the device has. The rest
    depends on how long rows turn out to be, and is never a reason to refuse.
    """
    machine = device(root.config)
    try:
        plans = [plan_stage(stage, processes(stage.config, machine), cuda=machine.cuda) for stage in unbuilt(root)]
    except ConfigError as error:  # the shape of a model is unknown: run without a plan
        return [f"memory unknown: {error}"]
    problems = [_refusal(plan, machine) for plan in plans if plan.floor > _share(plan, machine)]
    if problems:
        raise ConfigError([*problems, _advice_text(machine, root)])
    if not any(plan.peak for plan in plans):  # all are built, or hold no models
        return []
    largest = max(plans, key=lambda plan: plan.peak / _share(plan, machine))
    share = machine.share(largest.processes)
    available = f"; there are {size(share)}" if share else ""
    lines = [f"models: {size(largest.peak)} at most, in {largest.recipe}{available}"]
    too_large = [plan.stage for plan in plans if plan.peak > _share(plan, machine)]
    made_to_fit = {stage.recipe: fitted(stage)[1] for stage in too_large}
    if too_large and all(made_to_fit.values()):
        told = "; ".join(f"{recipe}: {change}" for recipe, change in made_to_fit.items())
        lines.append(f"made to fit (runtime.fit=none leaves it): {told}")
    elif too_large:
        lines.append(f"memory may not suffice where rows are at their longest; {_advice_text(machine, root)}")
    return lines


def _share(plan: StagePlan, machine: Device) -> float:
    """Bytes that one process of a stage has; infinite where the system does not say."""
    share = machine.share(plan.processes)
    return float("inf") if share is None else share


def _refusal(plan: StagePlan, machine: Device) -> str:
    return (
        f"{plan.recipe} cannot fit: weights, gradients and optimiser state are {size(plan.floor)}, and "
        f"{machine.name} has {size(machine.share(plan.processes))}"
    )


def _advice_text(machine: Device, root: Stage) -> str:
    """The change with which all stages fit, in words."""
    advice = smallest_change(root, machine, unbuilt)
    if advice is None:
        return (
            "no settings that were tried make it fit; take a smaller model, or see how many GPUs it needs: "
            f"python -m rlhf_lab plan +recipe={root.recipe} … cards=24,80"
        )
    return f"it fits with {' '.join(advice.overrides)} ({size(advice.peak)})"
