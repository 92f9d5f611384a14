"""ReAct agent (arXiv:2210.03629): think, call a tool, read its result, until the answer is known.

The conversation contains every turn and result; nothing is removed from it.
"""

from __future__ import annotations

from rlhf_lab.packs.agents.harness.program import AgentAttempt, ProgramAgent, Steps
from rlhf_lab.packs.agents.harness.resources import AgentResources
from rlhf_lab.packs.agents.harness.settings import React
from rlhf_lab.packs.agents.harness.tool_use import use_tools


def react(attempt: AgentAttempt) -> Steps[str | None]:
    """Call tools until the answer is known."""
    # No limit of its own: the limits of the attempt apply.
    act = yield from use_tools(attempt, attempt.messages)
    return act.final_answer if act else None


def build(settings: React, resources: AgentResources) -> ProgramAgent:
    return ProgramAgent("react", react, resources.model, settings.identity())
