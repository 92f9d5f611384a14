"""Agent with notes instead of a conversation: the model sees the question, its notes and the latest result.

After every result the model rewrites the notes, in at most `notes_tokens` tokens. Each turn starts a new conversation,
so the prompt does not grow with the number of calls. Anything that the notes leave out is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rlhf_lab.packs.agents.harness.program import AgentAttempt, ProgramAgent, Steps
from rlhf_lab.packs.agents.harness.prompts import Exchange
from rlhf_lab.packs.agents.harness.resources import AgentResources
from rlhf_lab.packs.agents.harness.settings import Scratchpad
from rlhf_lab.packs.agents.harness.tool_use import Act, TakeTurn, take_turn

SHOWN = 200
"""Number of characters of a turn without call or answer that the model is shown again with the error message."""


def scratchpad(attempt: AgentAttempt, *, notes_tokens: int) -> Steps[str | None]:
    """Act, write notes, and act again, until the model answers."""
    prompts = attempt.model.prompts
    instructions = prompts.with_tools(list(attempt.tools.values()), native=attempt.model.native_calls)
    take = partial(take_turn, attempt, system=instructions, part="agent")
    return with_notes(attempt, prompts.act, take, notes_tokens)


def with_notes(
    attempt: AgentAttempt, situation: Callable[[str, str, Sequence[Exchange]], str], take: TakeTurn, notes_tokens: int
) -> Steps[str | None]:
    """Run turns with notes between them until a turn answers.

    Args:
        attempt: the attempt.
        situation: function of the question, the notes and the latest results that returns all that a turn sees.
        take: runs a turn.
        notes_tokens: maximum length of the notes.
    """
    notes = ""
    latest: list[Exchange] = []
    while True:
        act = yield from take(attempt.to_messages(situation(attempt.question, notes, latest)))
        if act.answer is not None:
            return act.final_answer
        latest = exchanges(attempt, act)
        notes = yield from rewrite_notes(attempt, notes, latest, notes_tokens)


def rewrite_notes(attempt: AgentAttempt, notes: str, latest: Sequence[Exchange], notes_tokens: int) -> Steps[str]:
    """Return new notes, which replace the notes and the latest results."""
    system, question = attempt.model.prompts.note(attempt.question, notes, latest)
    (output,) = yield [attempt.ask(attempt.to_messages(question), system=system, part="notes", max_tokens=notes_tokens)]
    # Empty notes would lose everything known so far, so the old notes are kept.
    return output.text.strip() or notes


def exchanges(attempt: AgentAttempt, act: Act) -> list[Exchange]:
    """Return (call, result) of each call of a turn. For an invalid turn, return its text with the error message."""
    if act.problem:
        return [(act.output.text[:SHOWN], act.problem)]
    return [(attempt.model.prompts.call(call), call.result) for call in act.calls]


def build(settings: Scratchpad, resources: AgentResources) -> ProgramAgent:
    program = partial(scratchpad, notes_tokens=settings.notes_tokens)
    return ProgramAgent("scratchpad", program, resources.model, settings.identity())
