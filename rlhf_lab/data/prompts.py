"""Prompts without responses, to sample responses to: text, messages (with tools), or a list of user turns (MT-Bench).

The first of a list of turns is the prompt, and the full list is kept as metadata. There is nothing to imitate: both
responses of every `Pair` are empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from rlhf_lab.core.types import Corpus
from rlhf_lab.data.file_settings import PromptsData
from rlhf_lab.data.loading import load_corpus
from rlhf_lab.data.messages import decoded_column, read_messages, read_tools
from rlhf_lab.data.roles import require_columns
from rlhf_lab.data.rows import is_text_list, metadata_of
from rlhf_lab.data.split_rows import SplitRow, as_requested, prompt_oddities, prompt_of
from rlhf_lab.data.transcript import to_messages

EMPTY_PROMPT = "empty prompt"
NO_QUESTION = "prompt ends with an assistant turn"
MEANING = {"prompt": "what is asked"}
FORM = "text, a list of {role, content} messages, or a list of user turns"


def build(settings: PromptsData) -> Corpus:
    """Load prompts. Raise DataError for unreadable rows; see `rlhf_lab.data.loading.load_corpus`."""
    return load_corpus("prompts", settings, partial(parse_row, settings=settings))


def parse_row(values: Mapping[str, Any], settings: PromptsData) -> SplitRow:
    """Return the prompt of one row. Raise RowProblem if the column is missing or has another form."""
    check_columns(values, settings)
    value = decoded_column(values, settings.prompt)
    texts: tuple[str, ...] = (settings.prompt, settings.tools)
    drop = None
    tools = read_tools(values, settings.tools)
    if isinstance(value, str):
        prompt = prompt_of(value, tools)
        roles = [message["role"] for message in to_messages(prompt)]
        drop = NO_QUESTION if roles[-1:] == ["assistant"] else None
        if not value.strip():
            drop = EMPTY_PROMPT
    # MT-Bench lists the user turns of a conversation
    elif is_text_list(value) and value:
        texts = (settings.tools,)  # the list stays in the metadata: graders and multi-turn benchmarks need later turns
        drop = None if value[0].strip() else EMPTY_PROMPT
        prompt = prompt_of(value[0], tools)
    else:
        messages = read_messages(value, settings.prompt, FORM)
        drop = NO_QUESTION if messages[-1]["role"] == "assistant" else None
        if messages[-1]["role"] == "user" and not messages[-1]["content"].strip():
            drop = EMPTY_PROMPT
        prompt = prompt_of(messages, tools)
    requested = as_requested(prompt, settings)
    metadata, notes = metadata_of(values, texts, settings.fact_columns)
    all_notes = [*prompt_oddities(requested), *notes]
    return SplitRow(requested, "", "", drop=drop, notes=all_notes, metadata=metadata, asked=prompt)


def check_columns(values: Mapping[str, Any], settings: PromptsData) -> None:
    """Raise MissingColumns if a row lacks the column of the prompt."""
    require_columns(values, {"prompt": settings.prompt}, MEANING)
