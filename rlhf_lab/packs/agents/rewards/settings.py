"""Settings of the reward of tool calls. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.ranges import Ge
from rlhf_lab.rewards.term import TermSettings


@register("reward", "tool_calls")
@dataclass(frozen=True)
class ToolCalls(TermSettings):
    """What the calls of tools cost and earn, beside the outcome (`reward=[environment,tool_calls]`).

    Every turn that does not answer counts as a call, one that cannot be read too. Text that no policy sampled is
    unscored.

    Args:
        cost: subtracted for each call. Where nothing else separates the episodes of a task, a cost leads to no calls
            at all, from where no gradient leads back.
        progress: shared out over the task's expected calls; each earns its part when it is made in their order. What
            an episode can earn so is bounded, whatever calls it adds.
        bonus: added for each call, useful or not: a reward that can be had without solving the task.
    """

    requires: ClassVar[Requirements] = (Capability.TEXT, Capability.TURNS)
    cost: Annotated[float, Ge(0)] = 0.02
    progress: Annotated[float, Ge(0)] = 0.0
    bonus: Annotated[float, Ge(0)] = 0.0
