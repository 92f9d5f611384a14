"""Any preference data with a column map: text or message lists, with an explicit prompt or an implicit one.

An implicit prompt (`data.prompt=""`) is everything before the last assistant turn, which both sides must share. A side
that repeats an explicit prompt (as UltraFeedback's does) has the repetition removed, and that is noted. Not read:
tool turns, and completions of several messages (dropped, counted).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rlhf_lab.core.types import Corpus
from rlhf_lab.data.loading import load_corpus
from rlhf_lab.data.roles import columns_problem
from rlhf_lab.data.rows import RowProblem, column, describe
from rlhf_lab.data.settings import Pairs
from rlhf_lab.data.transcript import (
    DIFFERENT_HISTORY,
    NO_REPLY,
    ROLES,
    Message,
    Split,
    as_prompt,
    check,
    normalise,
    render_prompt,
    split_pair,
)

PROMPT_REPEATED = "replies repeat the prompt"
SEVERAL_MESSAGES = "reply is not one assistant message"
MEANING = {
    "prompt": "what was asked",
    "chosen": "the preferred reply",
    "rejected": "the reply it was preferred to",
}
OR_WHOLE_CONVERSATIONS = " (or data.prompt= when both sides are whole conversations)"


def build(settings: Pairs) -> Corpus:
    """Load preference pairs. Raises DataError; see `rlhf_lab.data.loading.load_corpus`."""
    return load_corpus("pairs", settings, partial(parse_row, columns=settings))


def parse_row(values: Mapping[str, Any], columns: Pairs) -> Split:
    """One row → prompt and replies. Raises RowProblem when a column is missing or has another form."""
    problem = column_problem(values, columns)
    if problem:
        raise RowProblem(problem)
    chosen = text_or_messages(values, columns.chosen)
    rejected = text_or_messages(values, columns.rejected)
    if isinstance(chosen, str) != isinstance(rejected, str):
        raise RowProblem(
            f"column {columns.chosen!r} is {_form_of(chosen)} and {columns.rejected!r} is {_form_of(rejected)}; "
            "expected the same form on both sides"
        )
    if columns.prompt:
        given_prompt = text_or_messages(values, columns.prompt)
        prompt = as_prompt(given_prompt) if isinstance(given_prompt, str) else render_prompt(given_prompt)
        return _split_explicit(prompt, chosen, rejected)
    if isinstance(chosen, str) and isinstance(rejected, str):
        return split_pair(chosen, rejected)
    return _split_implicit_messages(chosen, rejected)


def column_problem(values: Mapping[str, Any], columns: Pairs) -> str | None:
    """What to say of a row that lacks columns; None for one that has them."""
    names = {role: getattr(columns, role) for role in MEANING if getattr(columns, role)}
    return columns_problem(values, names, MEANING, "" if columns.prompt in values else OR_WHOLE_CONVERSATIONS)


def text_or_messages(values: Mapping[str, Any], name: str) -> Any:
    """A column as text or as a non-empty list of {role, content} messages. Raises RowProblem for anything else."""
    value = column(values, name)
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise RowProblem(f"column {name!r} is {describe(value)}; expected text or a list of {{role, content}} messages")
    for number, message in enumerate(value, start=1):
        where = f"column {name!r}, message {number}"
        if not isinstance(message, Mapping):
            raise RowProblem(f"{where} is {describe(message)}; expected an object {{role, content}}")
        if message.get("role") not in ROLES:
            raise RowProblem(f"{where}: role is {describe(message.get('role'))}; expected one of {', '.join(ROLES)}")
        if not isinstance(message.get("content"), str):
            raise RowProblem(f"{where}: content is {describe(message.get('content'))}; expected text")
    return value


def _form_of(value: object) -> str:
    return "text" if isinstance(value, str) else "a list of messages"


def _split_implicit_messages(chosen: Sequence[Message], rejected: Sequence[Message]) -> Split:
    prompt = render_prompt(chosen[:-1])
    rejected_prompt = render_prompt(rejected[:-1])
    if chosen[-1]["role"] != "assistant" or rejected[-1]["role"] != "assistant":
        return Split(prompt, "", "", drop=NO_REPLY)
    chosen_reply = chosen[-1]["content"].strip()
    rejected_reply = rejected[-1]["content"].strip()
    if prompt != rejected_prompt:
        return Split(prompt, chosen_reply, rejected_reply, drop=DIFFERENT_HISTORY)
    return check(prompt, chosen_reply, rejected_reply)


def _split_explicit(prompt: str, chosen: str | Sequence[Message], rejected: str | Sequence[Message]) -> Split:
    chosen_side = _strip_prompt(prompt, chosen)
    rejected_side = _strip_prompt(prompt, rejected)
    if chosen_side is None or rejected_side is None:
        return Split(prompt, "", "", drop=SEVERAL_MESSAGES)
    chosen_reply, chosen_repeats = chosen_side
    rejected_reply, rejected_repeats = rejected_side
    split = check(prompt, chosen_reply, rejected_reply)
    if split.drop is None and (chosen_repeats or rejected_repeats):
        split.notes.append(PROMPT_REPEATED)
    return split


def _strip_prompt(prompt: str, side: str | Sequence[Message]) -> tuple[str, bool] | None:
    """(reply, whether the prompt was repeated before it); None when the side is not the prompt and one reply."""
    if isinstance(side, str):
        transcript = normalise(side)
        if transcript.startswith(prompt):
            return transcript[len(prompt) :], True
        return side, False
    if side[-1]["role"] != "assistant":
        return None
    reply = side[-1]["content"]
    if len(side) == 1:
        return reply, False
    repeats_prompt = render_prompt(side[:-1]) == prompt
    return (reply, True) if repeats_prompt else None
