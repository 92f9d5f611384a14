"""Preference data with a column map: text or message lists, with an explicit or an implicit prompt.

An implicit prompt (`data.prompt=""`) is everything before the last assistant turn, and both sides need the same one. If
a side repeats an explicit prompt (as in UltraFeedback), the repetition is removed and noted. Messages keep their
spaces. Text loses the one space that joins a response to its prompt, and trailing space. Not supported: completions of
several messages, which are dropped and counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rlhf_lab.core.messages import Message
from rlhf_lab.core.types import Corpus
from rlhf_lab.data.file_settings import Pairs
from rlhf_lab.data.loading import load_corpus
from rlhf_lab.data.messages import completion_text, read_tools, text_or_messages
from rlhf_lab.data.roles import require_columns
from rlhf_lab.data.rows import RowProblem
from rlhf_lab.data.split_rows import (
    DIFFERENT_HISTORY,
    NO_REPLY,
    SplitRow,
    check,
    prompt_of,
    split_pair,
    split_response,
    with_tools,
)
from rlhf_lab.data.transcript import REPLY, SAID, normalise, render_prompt, response_text

PROMPT_REPEATED = "replies repeat the prompt"
SEVERAL_MESSAGES = "reply is not one assistant message"
MEANING = {
    "prompt": "what was asked",
    "chosen": "the preferred response",
    "rejected": "the response that was not preferred",
}
OR_WHOLE_CONVERSATIONS = " (or data.prompt= if both sides are full conversations)"
Tools = Sequence[Mapping[str, Any]]


def build(settings: Pairs) -> Corpus:
    """Load preference pairs. Raise DataError for unreadable rows; see `rlhf_lab.data.loading.load_corpus`."""
    return load_corpus("pairs", settings, partial(parse_row, columns=settings))


def parse_row(values: Mapping[str, Any], columns: Pairs) -> SplitRow:
    """Return prompt and responses of one row. Raise RowProblem if a column is missing or has another form."""
    check_columns(values, columns)
    chosen = text_or_messages(values, columns.chosen)
    rejected = text_or_messages(values, columns.rejected)
    # different forms on the two sides mostly mean that a column is named wrongly
    if isinstance(chosen, str) != isinstance(rejected, str):
        raise RowProblem(
            f"column {columns.chosen!r} is {_form_of(chosen)}, but {columns.rejected!r} is {_form_of(rejected)}; "
            "use the same form on both sides"
        )
    tools = read_tools(values, columns.tools)
    if columns.prompt:
        provided = text_or_messages(values, columns.prompt)
        split = _split_explicit(prompt_of(provided), chosen, rejected)
        return replace(split, prompt=prompt_of(provided, tools))
    if isinstance(chosen, str) or isinstance(rejected, str):
        split = split_pair(str(chosen), str(rejected))
        return replace(split, prompt=with_tools(split.prompt, tools))
    return _split_implicit_messages(chosen, rejected, tools)


def check_columns(values: Mapping[str, Any], columns: Pairs) -> None:
    """Raise MissingColumns if a row lacks a column."""
    names = {role: getattr(columns, role) for role in MEANING if getattr(columns, role)}
    # a row without a prompt column may hold full conversations
    require_columns(values, names, MEANING, "" if columns.prompt in values else OR_WHOLE_CONVERSATIONS)


def _form_of(value: object) -> str:
    return "text" if isinstance(value, str) else "a list of messages"


def _split_implicit_messages(chosen: Sequence[Message], rejected: Sequence[Message], tools: Tools) -> SplitRow:
    prompt = render_prompt(chosen[:-1], tools)
    rejected_prompt = render_prompt(rejected[:-1], tools)
    if chosen[-1]["role"] != "assistant" or rejected[-1]["role"] != "assistant":
        return SplitRow(prompt, "", "", drop=NO_REPLY)
    chosen_response = response_text(chosen[-1])
    rejected_response = response_text(rejected[-1])
    if prompt != rejected_prompt:  # the two sides answer different questions
        return SplitRow(prompt, chosen_response, rejected_response, drop=DIFFERENT_HISTORY)
    return check(prompt, chosen_response, rejected_response)


def _split_explicit(prompt: str, chosen: str | Sequence[Message], rejected: str | Sequence[Message]) -> SplitRow:
    chosen_side = strip_prompt(prompt, chosen)
    rejected_side = strip_prompt(prompt, rejected)
    if chosen_side is None or rejected_side is None:
        return SplitRow(prompt, "", "", drop=SEVERAL_MESSAGES)
    chosen_response, chosen_repeats = chosen_side
    rejected_response, rejected_repeats = rejected_side
    split = check(prompt, chosen_response, rejected_response)
    if split.drop is None and (chosen_repeats or rejected_repeats):
        split.notes.append(PROMPT_REPEATED)
    return split


def strip_prompt(prompt: str, side: str | Sequence[Message]) -> tuple[str, bool] | None:
    """Return (response, True if the prompt was repeated), or None if the side is not the prompt plus one response.

    `prompt` must not contain tool definitions, because the columns of the responses do not repeat them.
    """
    if isinstance(side, str):
        transcript = normalise(side)
        if not SAID.match(transcript) or REPLY not in transcript:  # only the response
            return completion_text(side), False
        split = split_response(side)
        if split is None or split[0] not in (prompt, REPLY):  # more turns than the prompt, or another prompt
            return None
        return split[1], split[0] == prompt
    if side[-1]["role"] != "assistant":
        return None
    response = response_text(side[-1])
    if len(side) == 1:
        return response, False
    # A prompt that is text has lost its outer spaces, but messages keep theirs.
    stripped: list[Message] = [{**message, "content": message["content"].strip()} for message in side[:-1]]
    repeats_prompt = prompt in (render_prompt(side[:-1]), render_prompt(stripped))
    return (response, True) if repeats_prompt else None
