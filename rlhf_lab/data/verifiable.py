"""Prompts whose responses can be checked: against an answer, or by metadata of the row (tests, entry_point, …).

The prompt keeps its spaces, because a code completion continues exactly where it ends. Rewards receive every other
column as `Corpus.metadata`. The answers are also `Corpus.answers`, and the oracle is then the answer key.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from rlhf_lab.core.types import Corpus
from rlhf_lab.data.file_settings import Verifiable
from rlhf_lab.data.gsm8k import load_with_answers
from rlhf_lab.data.loading import load_corpus
from rlhf_lab.data.messages import read_tools, text_or_messages
from rlhf_lab.data.prompts import EMPTY_PROMPT, NO_QUESTION
from rlhf_lab.data.roles import require_columns
from rlhf_lab.data.rows import RowProblem, column, describe, is_missing, text_column
from rlhf_lab.data.split_rows import SplitRow, as_requested, prompt_oddities, read_prompt
from rlhf_lab.data.transcript import SAID, normalise, render_prompt, to_messages

EMPTY_ANSWER = "empty answer"
MEANING = {
    "prompt": "what is asked",
    "answer": "the answer that a response must reach",
    "solution": "a worked solution",
}
WITHOUT_ANSWER = " (or data.answer= if rewards read other columns, such as tests)"


def build(settings: Verifiable) -> Corpus:
    """Load verifiable prompts. Raise DataError for unreadable rows; see `rlhf_lab.data.loading.load_corpus`."""
    load = load_with_answers if settings.answer else load_corpus
    return load("verifiable", settings, partial(parse_row, settings=settings))


def parse_row(values: Mapping[str, Any], settings: Verifiable) -> SplitRow:
    """Return prompt, solution and answer of a row, as far as it has them. Raise RowProblem for a malformed column."""
    check_columns(values, settings)
    provided = text_or_messages(values, settings.prompt)
    if isinstance(provided, str):
        # a transcript keeps its turns; plain text also keeps its spaces, which `read_prompt` would strip
        turns = to_messages(read_prompt(provided)) if SAID.match(normalise(provided)) else []
        provided = turns or [{"role": "user", "content": provided}]
    asked = render_prompt(provided, read_tools(values, settings.tools))
    prompt = as_requested(asked, settings)
    solution = text_column(values, settings.solution).rstrip() if settings.solution else ""
    drop = NO_QUESTION if provided[-1]["role"] == "assistant" else None
    if not provided[-1]["content"].strip():
        drop = EMPTY_PROMPT
    answer = _answer(values, settings.answer) if settings.answer and not drop else ""
    if settings.answer and not answer:
        drop = drop or EMPTY_ANSWER
    return SplitRow(prompt, solution, "", drop=drop, notes=prompt_oddities(prompt), asked=asked, answer=answer)


def _answer(values: Mapping[str, Any], name: str) -> str:
    value = column(values, name)
    if is_missing(value):
        value = None
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):  # bool is an int in Python
        raise RowProblem(f"column {name!r} is {describe(value)}; expected text or a number")
    # tables may hold answers as numbers
    return str(value).strip()


def check_columns(values: Mapping[str, Any], settings: Verifiable) -> None:
    """Raise MissingColumns if a row lacks a column."""
    names = {role: getattr(settings, role) for role in MEANING if getattr(settings, role)}
    require_columns(values, names, MEANING, WITHOUT_ANSWER if "answer" in names else "")
