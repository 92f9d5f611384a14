"""Demonstrations: full conversations as messages (with tools), prompt and completion, or text.

The columns of a row determine its form: `messages`, else `prompt` and `completion`, else `text`. The prompt of a
conversation is everything before the last assistant turn. `Pair.meta["learn_from"]` is the index of the first message
whose assistant turns are demonstrations: 0 for all turns, or the start of the completion. Text is a transcript, or
plain text to imitate, which has no prompt.
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
from rlhf_lab.data.roles import missing_columns
from rlhf_lab.data.rows import MissingColumns, text_column
from rlhf_lab.data.split_rows import NO_REPLY, SplitRow, prompt_oddities, prompt_of, read_prompt, read_transcript
from rlhf_lab.data.transcript import SAID, normalise, parse, render_prompt, response_text, to_messages

EMPTY_REPLY = "empty reply"
UNANSWERED = "turns after the last assistant turn are left out"


def build(settings: Demonstrations) -> Corpus:
    """Load demonstrations. Raise DataError for unreadable rows; see `rlhf_lab.data.loading.load_corpus`."""
    return load_corpus("sft", settings, partial(parse_row, settings=settings))


def parse_row(values: Mapping[str, Any], settings: Demonstrations) -> SplitRow:
    """Return the last response of a row and its context. Raise RowProblem if no form fits or a column is malformed."""
    check_columns(values, settings)
    tools = read_tools(values, settings.tools)
    if values.get(settings.messages) is not None:
        return conversation(messages_column(values, settings.messages), tools)
    if settings.completion in values:
        return _prompt_and_completion(values, settings, tools)
    # text is a transcript if it has turns, else one response without a prompt
    text = text_column(values, settings.text)
    if SAID.match(normalise(text)):
        return conversation(parse(read_transcript(text)).messages, tools)
    response = text.rstrip()
    return SplitRow("", response, "", drop=None if response.strip() else EMPTY_REPLY)


def check_columns(values: Mapping[str, Any], settings: Demonstrations) -> None:
    """Raise MissingColumns if a row has none of the forms."""
    missing = [name for name in (settings.prompt, settings.completion) if name not in values]
    if settings.messages in values or settings.text in values or not missing:
        return
    # with neither column, the row probably has messages under another name
    expected = [settings.messages] if len(missing) == 2 else missing
    raise MissingColumns(
        f"{missing_columns(expected, values)}; expected messages, or prompt and completion, or text: name the columns "
        "with data.messages=COLUMN, or data.prompt=COLUMN data.completion=COLUMN, or data.text=COLUMN"
    )


def conversation(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], learn_from: int = 0) -> SplitRow:
    """Return a conversation as its last response and the context before it.

    Args:
        learn_from: index of the first message that is a demonstration if it is the assistant's.
    """
    assistant_turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    last = assistant_turns[-1] if assistant_turns else -1
    # no assistant turn is left to learn from
    if last < learn_from:
        return SplitRow(render_prompt(messages, tools), "", "", drop=NO_REPLY)
    prompt = render_prompt(messages[:last], tools)
    # the response is not quoted, unlike turns inside a transcript
    response = response_text(messages[last]).rstrip()
    notes = prompt_oddities(prompt)
    if last + 1 < len(messages):
        notes.append(UNANSWERED)
    drop = None if response.strip() else EMPTY_REPLY
    return SplitRow(prompt, response, "", drop=drop, notes=notes, meta={"learn_from": learn_from})


def _prompt_and_completion(
    values: Mapping[str, Any], settings: Demonstrations, tools: Sequence[Mapping[str, Any]]
) -> SplitRow:
    prompt = text_or_messages(values, settings.prompt)
    completion = text_or_messages(values, settings.completion)
    if isinstance(completion, str):
        text = prompt_of(prompt, tools)
        response = completion_text(completion)
        drop = None if response.strip() else EMPTY_REPLY
        return SplitRow(text, response, "", drop=drop, notes=prompt_oddities(text))
    # messages of the prompt are context: only those of the completion are trained on
    history = to_messages(read_prompt(prompt)) if isinstance(prompt, str) else prompt
    return conversation([*history, *completion], tools, learn_from=len(history))
