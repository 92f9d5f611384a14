"""Scripted coordinator of the tool world: it asks an executor for one fact per turn.

    Thought: capital tal vor; need ruler
    Action: ask[ Find the ruler of tal vor. ]

Only tasks whose steps are all searches can be led in this way.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_lab.core.tools import Call
from rlhf_lab.data.text_calls import ACTION, ANSWER, THOUGHT
from rlhf_lab.packs.agents.tools.demonstrations import DemonstratedTurn, is_chain, noted, notes_of
from rlhf_lab.packs.agents.tools.kinds import UNKNOWN, Lookup, SampledTask, find
from rlhf_lab.packs.agents.tools.roles import ASK, NOTHING, spaced_call


def can_be_led(task: SampledTask) -> bool:
    """Return True if every step of a task is a search."""
    return all(isinstance(step, Lookup) and step.tool == "search" for step in task.steps)


def led_turns(task: SampledTask, values: Sequence[str], answer: str) -> list[DemonstratedTurn]:
    """Return the turns of the coordinator; the last one answers.

    Args:
        task: a task that can be led.
        values: value of each step; shorter than the steps if one of them has none.
        answer: the answer.
    """
    keeps_all = not is_chain(task)
    turns = []
    found: list[str] = []

    def known() -> str:
        # A chain only needs its last value; other tasks need all of them.
        return "; ".join(found if keeps_all else found[-1:])

    for index, step in enumerate(task.steps):
        assert isinstance(step, Lookup)
        entity = step.subject if isinstance(step.subject, str) else values[step.subject]
        query = find(step.relation, entity)
        finding = values[index] if index < len(values) else UNKNOWN
        thought = noted(known(), f"need {step.relation}")
        turns.append(
            DemonstratedTurn(
                notes_of(task, known(), index, keeps_all=keeps_all),
                f"{THOUGHT} {thought}\n{ACTION} {spaced_call(ASK, [query])}",
                Call(ASK, {"query": query}, finding),
            )
        )
        found.append(f"{step.relation} {finding}")
        if finding == UNKNOWN:
            break
    # Nothing is left to look up, neither after the last step nor after one without a value.
    notes = notes_of(task, known(), len(task.steps), keeps_all=keeps_all)
    text = f"{THOUGHT} {known() or NOTHING}\n{ANSWER} {answer}"
    turns.append(DemonstratedTurn(notes, text))
    return turns
