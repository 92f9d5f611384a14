"""Notes instead of a conversation: the model sees the question, its notes and the latest result.

After every result it rewrites the notes, in at most `notes_tokens` tokens. Each turn starts a conversation of its own,
so that what is read does not grow with the number of calls; what the notes leave out is forgotten.
"""

from __future__ import annotations

from functools import partial

from rlhf_lab.packs.agents.harness.program import Attempt, ProgramAgent, Steps
from rlhf_lab.packs.agents.harness.prompts import Exchange
from rlhf_lab.packs.agents.harness.settings import Scratchpad
from rlhf_lab.packs.agents.harness.surroundings import Surroundings
from rlhf_lab.packs.agents.harness.tool_use import Act, take_turn

SHOWN = 200
"""Characters of a turn that was no call, as it is shown beside what is wrong with it."""


def scratchpad(attempt: Attempt, *, notes_tokens: int) -> Steps[str | None]:
    """Act, write down what matters, act again."""
    prompts = attempt.model.prompts
    instructions = prompts.with_tools(list(attempt.tools.values()), native=attempt.model.native_calls)
    notes = ""
    latest: list[Exchange] = []
    while True:
        situation = prompts.act(attempt.question, notes, latest)
        act = yield from take_turn(attempt, attempt.asked(situation), system=instructions, part="agent")
        if act.answer is not None:
            return act.final_answer
        latest = _exchanges(attempt, act)
        system, question = prompts.note(attempt.question, notes, latest)
        (said,) = yield [attempt.ask(attempt.asked(question), system=system, part="notes", max_tokens=notes_tokens)]
        # notes that came to nothing would lose what is known
        notes = said.text.strip() or notes


def _exchanges(attempt: Attempt, act: Act) -> list[Exchange]:
    """The calls of a turn with their results, or the turn with what is wrong with it."""
    if act.problem:
        return [(act.said.text[:SHOWN], act.problem)]
    return [(attempt.model.prompts.call(call), call.result) for call in act.calls]


def build(settings: Scratchpad, surroundings: Surroundings) -> ProgramAgent:
    program = partial(scratchpad, notes_tokens=settings.notes_tokens)
    return ProgramAgent("scratchpad", program, surroundings.model, settings.identity())
