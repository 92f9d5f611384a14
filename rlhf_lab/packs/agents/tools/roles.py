r"""What a small model is asked, and in which form it answers: one short prompt for each part that an agent may give it.

A model of a hundred thousand parameters reads no instructions: a word in front of the question says what is wanted, and
demonstrations say the rest. Agents that ask such a model and the data it was trained on (`data=tools`, `data.roles`)
take their prompts from here, so that it is asked what it has learned.

    role      prompt                                          reply
    act       the question; then what the tools said          Thought: …\nAction: search[ X ; r ], or Answer: …
    answer    the question                                    Answer: …
    plan      the question                                    a numbered call a line; #1 is the result of the first
    split     the question                                    a JSON list of questions, each understood by itself
    step      the question and notes                          one turn as in act
    note      the question, notes, a call and its result      the new notes, which replace the old ones
    combine   the question and what was found so far          Answer: …, or one more Action whose result joins it
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from rlhf_lab.data.text_calls import DIVIDER

Role = Literal["act", "answer", "plan", "split", "step", "note", "combine"]
ROLES: tuple[Role, ...] = get_args(Role)

NOTHING = "nothing"
"""Notes before anything was noted."""


def prompt_of(
    role: Role, question: str = "", *, notes: str = "", call: str = "", result: str = "", found: Sequence[str] = ()
) -> str:
    """The user's message that asks a small model to play a role.

    Args:
        notes: of step and note: what was noted so far.
        call, result: of note: the call as `spaced_call` writes it, and what it gave.
        found: of combine: the results or answers of the parts, in order.
    """
    if role == "act":
        return question
    if role == "note":
        return f"Note: {question} Notes: {notes or NOTHING}; {call} gave {result}."
    if role == "step":
        return f"Step: {question} Notes: {notes or NOTHING}."
    if role == "combine":
        return f"Combine: {question} Found: {'; '.join(found)}."
    words = {"answer": "Reply", "plan": "Plan", "split": "Split"}
    return f"{words[role]}: {question}"


def spaced_call(name: str, arguments: Sequence[str]) -> str:
    """A call as a small model writes it: `search[ Velmora ; capital ]`.

    With a space before every word, so that a word is the same token here as in a sentence.

    Args:
        arguments: their values, in the order of the tool's parameters.
    """
    return f"{name}[ {DIVIDER.join(arguments)} ]"
