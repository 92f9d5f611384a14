"""Demonstrations: whole conversations as messages (with tools), prompt and completion, or text.

A row's form is told by its columns: `messages`, else `prompt` and `completion`, else `text`. Of a conversation the
prompt is everything before the last assistant turn, and `Pair.meta["learn_from"]` says from which message on assistant
turns are demonstrations: all of them, or those of the completion. Text is a transcript, or plain text to imitate, which
has no prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rlhf_lab.core.messages import Message
from rlhf_lab.core.types import Corpus
from rlhf_lab.data.file_settings import Demonstrations
from rlhf_lab.data.loading import load_corpus
from rlhf_lab.data.messages import completion_text, messages_column, read_tools, text_or_messages
from rlhf_lab.data.replies import NO_REPLY, Split, prompt_oddities, read_prompt, read_transcript
from rlhf_lab.data.roles import missing_columns
from rlhf_lab.data.rows import MissingColumns, text_column
from rlhf_lab.data.transcript import SAID, normalise, parse, render_prompt, reply_text, to_messages

EMPTY_REPLY = "empty reply"
UNANSWERED = "turns after the last assistant turn are left out"


def build(settings: Demonstrations) -> Corpus:
    """Load demonstrations. Raises DataError; see `rlhf_lab.data.loading.load_corpus`."""
    return load_corpus("sft", settings, partial(parse_row, settings=settings))


def parse_row(values: Mapping[str, Any], settings: Demonstrations) -> Split:
    """One row → its last reply and what comes before. Raises RowProblem when no form fits or a column is wrong."""
    problem = column_problem(values, settings)
    if problem:
        raise MissingColumns(problem)
    tools = read_tools(values, settings.tools)
    if values.get(settings.messages) is not None:
        return conversation(messages_column(values, settings.messages), tools)
    if settings.completion in values:
        return _prompt_and_completion(values, settings, tools)
    text = text_column(values, settings.text)
    if SAID.match(normalise(text)):
        return conversation(parse(read_transcript(text)).messages, tools)
    reply = text.rstrip()
    return Split("", reply, "", drop=None if reply.strip() else EMPTY_REPLY)


def column_problem(values: Mapping[str, Any], settings: Demonstrations) -> str | None:
    """What to say of a row that has none of the forms; None for one that has."""
    if settings.messages in values or settings.text in values:
        return None
    missing = [name for name in (settings.prompt, settings.completion) if name not in values]
    if not missing:
        return None
    wanted = [settings.messages] if len(missing) == 2 else missing
    return (
        f"{missing_columns(wanted, values)}; expected messages, or prompt and completion, or text: name the columns "
        "with data.messages=COLUMN, or data.prompt=COLUMN data.completion=COLUMN, or data.text=COLUMN"
    )


def conversation(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], learn_from: int = 0) -> Split:
    """A conversation as its last reply and what comes before.

    Args:
        learn_from: the first message whose turn, if it is the assistant's, is a demonstration.
    """
    last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
    if last < learn_from:
        return Split(render_prompt(messages, tools), "", "", drop=NO_REPLY)
    prompt = render_prompt(messages[:last], tools)
    reply = reply_text(messages[last]).rstrip()
    notes = prompt_oddities(prompt)
    if last + 1 < len(messages):
        notes.append(UNANSWERED)
    drop = None if reply.strip() else EMPTY_REPLY
    return Split(prompt, reply, "", drop=drop, notes=notes, meta={"learn_from": learn_from})


def _prompt_and_completion(
    values: Mapping[str, Any], settings: Demonstrations, tools: Sequence[Mapping[str, Any]]
) -> Split:
    prompt = text_or_messages(values, settings.prompt)
    completion = text_or_messages(values, settings.completion)
    if isinstance(completion, str):
        text = read_prompt(prompt) if isinstance(prompt, str) else render_prompt(prompt, tools)
        reply = completion_text(completion)
        drop = None if reply.strip() else EMPTY_REPLY
        return Split(text, reply, "", drop=drop, notes=prompt_oddities(text))
    history = to_messages(read_prompt(prompt)) if isinstance(prompt, str) else prompt
    return conversation([*history, *completion], tools, learn_from=len(history))
