"""ReAct (arXiv:2210.03629): think, call a tool, read its result, until the answer is known.

The conversation grows by every turn and result; nothing is left out of it.
"""

from __future__ import annotations

from rlhf_lab.packs.agents.harness.program import Attempt, ProgramAgent, Steps
from rlhf_lab.packs.agents.harness.settings import React
from rlhf_lab.packs.agents.harness.surroundings import Surroundings
from rlhf_lab.packs.agents.harness.tool_use import use_tools


def react(attempt: Attempt) -> Steps[str | None]:
    """Call tools until the answer is known."""
    act = yield from use_tools(attempt, attempt.messages)
    return act.final_answer if act else None


def build(settings: React, surroundings: Surroundings) -> ProgramAgent:
    return ProgramAgent("react", react, surroundings.model, settings.identity())
