r"""Prompts and response forms of small models: one short prompt for each role that an agent may give the model.

A model of a hundred thousand parameters cannot follow instructions. A word before the question names the role, and
demonstrations teach the rest. Agents with such a model and its training data (`data=tools`, `data.roles`) use the
prompts of this module, so that the prompts are those of the training data.

    role      prompt                                          response
    act       the question; then the tools' results           Thought: …\nAction: search[ X ; r ], or Answer: …
    answer    the question                                    Answer: …
    plan      the question                                    numbered calls, one per line; #1 is the first result
    split     the question                                    a JSON list of questions; #1 is the first answer
    step      the question and notes                          one turn as in act
    note      the question, notes, a call and its result      new notes, which replace the old ones
    combine   the question and the results so far             Answer: …, or one more Action whose result is added
    lead      the question; then the answers of executors     Action: ask[ a question ], or Answer: …
    lead_step the question and notes                          one turn as in lead
    lead_note the question, notes, a question and its answer  new notes, as in note
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from rlhf_lab.data.text_calls import DIVIDER

Role = Literal["act", "answer", "plan", "split", "step", "note", "combine", "lead", "lead_step", "lead_note"]
ROLES: tuple[Role, ...] = get_args(Role)

ASK = "ask"
"""Name of the tool with which a coordinator questions an executor."""
NOTHING = "nothing"
"""Text of empty notes."""


def prompt_of(
    role: Role, question: str = "", *, notes: str = "", call: str = "", result: str = "", found: Sequence[str] = ()
) -> str:
    """Return the user message that asks a small model to play a role.

    Args:
        role: the role.
        question: the question.
        notes: notes so far, for step, note, lead_step and lead_note.
        call, result: call as `spaced_call` writes it, and its result, for note and lead_note.
        found: results of the steps or answers of the parts in order, for combine.
    """
    if role == "act":
        return question
    if role in ("note", "lead_note"):
        return f"Note: {question} Notes: {notes or NOTHING}; {call} gave {result}."
    if role == "step":
        return f"Step: {question} Notes: {notes or NOTHING}."
    if role == "lead_step":
        return f"Lead: {question} Notes: {notes or NOTHING}."
    if role == "combine":
        return f"Combine: {question} Found: {'; '.join(found)}."
    # Small models are trained on these words, so they must not change.
    words = {"answer": "Reply", "plan": "Plan", "split": "Split", "lead": "Lead"}
    return f"{words[role]}: {question}"


def spaced_call(name: str, arguments: Sequence[str]) -> str:
    """Format a call in the form of small models: `search[ Velmora ; capital ]`.

    Every word has a space before it, so that it is the same token as in a sentence.

    Args:
        name: name of the tool.
        arguments: values of the arguments, in the order of the tool's parameters.
    """
    return f"{name}[ {DIVIDER.join(arguments)} ]"
