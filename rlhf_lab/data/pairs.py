"""Any preference data with a column map: text or message lists, with an explicit prompt or an implicit one.

An implicit prompt (`data.prompt=""`) is everything before the last assistant turn, which both sides must share. A side
that repeats an explicit prompt (as UltraFeedback's does) has the repetition removed, and that is noted. Messages keep
their spaces; of text, the one space that joins a reply to its prompt and trailing space go. Not read: completions of
several messages (dropped, counted).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rlhf_lab.core.messages import Message
from rlhf_lab.core.types import Corpus
from rlhf_lab.data.file_settings import Pairs
from rlhf_lab.data.loading import load_corpus
from rlhf_lab.data.messages import completion_text, read_tools, text_or_messages
from rlhf_lab.data.replies import (
    DIFFERENT_HISTORY,
    NO_REPLY,
    Split,
    check,
    read_prompt,
    read_transcript,
    split_pair,
)
from rlhf_lab.data.roles import columns_problem
from rlhf_lab.data.rows import MissingColumns, RowProblem
from rlhf_lab.data.transcript import SAID, normalise, render_prompt, reply_text, unquote

PROMPT_REPEATED = "replies repeat the prompt"
SEVERAL_MESSAGES = "reply is not one assistant message"
MEANING = {
    "prompt": "what was asked",
    "chosen": "the preferred reply",
    "rejected": "the reply it was preferred to",
}
OR_WHOLE_CONVERSATIONS = " (or data.prompt= when both sides are whole conversations)"
Tools = Sequence[Mapping[str, Any]]


def build(settings: Pairs) -> Corpus:
    """Load preference pairs. Raises DataError; see `rlhf_lab.data.loading.load_corpus`."""
    return load_corpus("pairs", settings, partial(parse_row, columns=settings))


def parse_row(values: Mapping[str, Any], columns: Pairs) -> Split:
    """One row → prompt and replies. Raises RowProblem when a column is missing or has another form."""
    problem = column_problem(values, columns)
    if problem:
        raise MissingColumns(problem)
    chosen = text_or_messages(values, columns.chosen)
    rejected = text_or_messages(values, columns.rejected)
    if isinstance(chosen, str) != isinstance(rejected, str):
        raise RowProblem(
            f"column {columns.chosen!r} is {_form_of(chosen)} and {columns.rejected!r} is {_form_of(rejected)}; "
            "expected the same form on both sides"
        )
    tools = read_tools(values, columns.tools)
    if columns.prompt:
        given_prompt = text_or_messages(values, columns.prompt)
        if isinstance(given_prompt, str):
            return _split_explicit(read_prompt(given_prompt), chosen, rejected, tools)
        return _split_explicit(render_prompt(given_prompt, tools), chosen, rejected, tools)
    if isinstance(chosen, str) or isinstance(rejected, str):
        return split_pair(str(chosen), str(rejected))
    return _split_implicit_messages(chosen, rejected, tools)


def column_problem(values: Mapping[str, Any], columns: Pairs) -> str | None:
    """What to say of a row that lacks columns; None for one that has them."""
    names = {role: getattr(columns, role) for role in MEANING if getattr(columns, role)}
    return columns_problem(values, names, MEANING, "" if columns.prompt in values else OR_WHOLE_CONVERSATIONS)


def _form_of(value: object) -> str:
    return "text" if isinstance(value, str) else "a list of messages"


def _split_implicit_messages(chosen: Sequence[Message], rejected: Sequence[Message], tools: Tools) -> Split:
    prompt = render_prompt(chosen[:-1], tools)
    rejected_prompt = render_prompt(rejected[:-1], tools)
    if chosen[-1]["role"] != "assistant" or rejected[-1]["role"] != "assistant":
        return Split(prompt, "", "", drop=NO_REPLY)
    chosen_reply = reply_text(chosen[-1])
    rejected_reply = reply_text(rejected[-1])
    if prompt != rejected_prompt:
        return Split(prompt, chosen_reply, rejected_reply, drop=DIFFERENT_HISTORY)
    return check(prompt, chosen_reply, rejected_reply)


def _split_explicit(
    prompt: str, chosen: str | Sequence[Message], rejected: str | Sequence[Message], tools: Tools
) -> Split:
    chosen_side = strip_prompt(prompt, chosen, tools)
    rejected_side = strip_prompt(prompt, rejected, tools)
    if chosen_side is None or rejected_side is None:
        return Split(prompt, "", "", drop=SEVERAL_MESSAGES)
    chosen_reply, chosen_repeats = chosen_side
    rejected_reply, rejected_repeats = rejected_side
    split = check(prompt, chosen_reply, rejected_reply)
    if split.drop is None and (chosen_repeats or rejected_repeats):
        split.notes.append(PROMPT_REPEATED)
    return split


def strip_prompt(prompt: str, side: str | Sequence[Message], tools: Tools = ()) -> tuple[str, bool] | None:
    """(reply, whether the prompt was repeated before it); None when the side is not the prompt and one reply."""
    if isinstance(side, str):
        transcript = read_transcript(side) if SAID.match(normalise(side)) else side
        if transcript.startswith(prompt):
            return unquote(transcript[len(prompt) :]).strip(), True
        return completion_text(side), False
    if side[-1]["role"] != "assistant":
        return None
    reply = reply_text(side[-1])
    if len(side) == 1:
        return reply, False
    repeats_prompt = render_prompt(side[:-1], tools) == prompt
    return (reply, True) if repeats_prompt else None
