"""What every run says of its memory before it loads weights, and when it refuses."""

from __future__ import annotations

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.memory.device import Device, device, processes
from rlhf_lab.memory.fit import smallest_change
from rlhf_lab.memory.plan import StagePlan, plan_stage
from rlhf_lab.memory.show import size
from rlhf_lab.stages.artifacts import Stage
from rlhf_lab.stages.preflight import unbuilt


def memory_lines(root: Stage) -> list[str]:
    """One line on the most demanding stage, and one on what to change where not all fit; none where all is built.

    Raises ConfigError when the weights, gradients and moments of a stage alone are more than the device has. What
    depends on how long rows are is never a reason to refuse.
    """
    found = device(root.config)
    try:
        plans = [plan_stage(part, processes(part.config, found), cuda=found.cuda) for part in unbuilt(root)]
    except ConfigError as error:  # a shape that is not known is no reason not to run
        return [f"memory unknown: {error}"]
    problems = [_refusal(plan, found) for plan in plans if _share(plan, found) < plan.floor]
    if problems:
        raise ConfigError([*problems, _advice(found, root)])
    if not plans:
        return []
    most = max(plans, key=lambda plan: plan.peak / _share(plan, found))
    share = found.share(most.processes)
    lines = [f"models: {size(most.peak)} at most, in {most.recipe}" + (f"; there are {size(share)}" if share else "")]
    if most.peak > _share(most, found):
        lines.append(f"memory may not suffice where rows are at their longest; {_advice(found, root)}")
    return lines


def _share(plan: StagePlan, found: Device) -> float:
    share = found.share(plan.processes)
    return float("inf") if share is None else share


def _refusal(plan: StagePlan, found: Device) -> str:
    return (
        f"{plan.recipe} cannot fit: weights, gradients and optimiser state are {size(plan.floor)}, and "
        f"{found.name} has {size(found.share(plan.processes))}"
    )


def _advice(found: Device, root: Stage) -> str:
    """What lets all stages fit."""
    advice = smallest_change(root, found, unbuilt)
    if advice is None:
        return (
            "no settings that were tried make it fit; take a smaller model, or see how many GPUs it needs: "
            f"python -m rlhf_lab plan +recipe={root.recipe} … cards=24,80"
        )
    return f"it fits with {' '.join(advice.overrides)} ({size(advice.peak)})"
