"""Settings of the reward of tool calls. This module imports no torch."""

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
    """Cost and reward of tool calls, in addition to the outcome (`reward=[environment,tool_calls]`).

    Every turn that does not answer counts as a call, even if it cannot be parsed. Text that no policy sampled is
    unscored.

    Args:
        cost: cost of each call. If nothing else distinguishes the episodes of a task, the policy learns to make no
            calls at all, and no gradient leads away from that state.
        progress: total reward for the expected calls of a task. Each of them earns an equal part if it is made in their
            order. Extra calls earn nothing, so the reward of an episode is bounded.
        bonus: reward for each call, useful or not. The policy can earn it without solving the task.
    """

    requires: ClassVar[Requirements] = (Capability.TEXT, Capability.TURNS)
    cost: Annotated[float, Ge(0)] = 0.02
    progress: Annotated[float, Ge(0)] = 0.0
    bonus: Annotated[float, Ge(0)] = 0.0
