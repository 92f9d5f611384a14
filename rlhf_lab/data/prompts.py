"""Prompts alone, to sample replies to: text, messages (with tools), or a list of user turns (MT-Bench).

Of a list of turns the first is the prompt, and the whole list is among the facts. There is nothing to imitate: both
replies of every `Pair` are empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from rlhf_lab.core.types import Corpus
from rlhf_lab.data.asking import as_asked
from rlhf_lab.data.facts import facts_of
from rlhf_lab.data.file_settings import Prompts
from rlhf_lab.data.loading import load_corpus
from rlhf_lab.data.messages import read_messages, read_tools
from rlhf_lab.data.replies import Split, prompt_oddities, read_prompt
from rlhf_lab.data.roles import columns_problem
from rlhf_lab.data.rows import MissingColumns, column
from rlhf_lab.data.transcript import render_prompt

EMPTY_PROMPT = "empty prompt"
NO_QUESTION = "prompt ends with an assistant turn"
MEANING = {"prompt": "what is asked"}
FORM = "text, a list of {role, content} messages, or a list of user turns"


def build(settings: Prompts) -> Corpus:
    """Load prompts. Raises DataError; see `rlhf_lab.data.loading.load_corpus`."""
    return load_corpus("prompts", settings, partial(parse_row, settings=settings))


def parse_row(values: Mapping[str, Any], settings: Prompts) -> Split:
    """One row → prompt. Raises RowProblem when the column is missing or has another form."""
    problem = column_problem(values, settings)
    if problem:
        raise MissingColumns(problem)
    value = column(values, settings.prompt)
    texts: tuple[str, ...] = (settings.prompt, settings.tools)
    drop = None
    if isinstance(value, str):
        drop = None if value.strip() else EMPTY_PROMPT
        prompt = read_prompt(value)
    elif isinstance(value, list) and value and all(isinstance(turn, str) for turn in value):
        texts = (settings.tools,)  # the later turns are for graders and for whoever asks them
        drop = None if value[0].strip() else EMPTY_PROMPT
        prompt = read_prompt(value[0])
    else:
        messages = read_messages(value, settings.prompt, FORM)
        drop = NO_QUESTION if messages[-1]["role"] == "assistant" else None
        prompt = render_prompt(messages, read_tools(values, settings.tools))
    prompt = as_asked(prompt, settings)
    facts, remarks = facts_of(values, texts, settings.fact_columns)
    return Split(prompt, "", "", drop=drop, notes=[*prompt_oddities(prompt), *remarks], facts=facts)


def column_problem(values: Mapping[str, Any], settings: Prompts) -> str | None:
    """What to say of a row without a prompt; None for one that has it."""
    return columns_problem(values, {"prompt": settings.prompt}, MEANING)
