"""Prompts whose responses can be checked: against an answer, or by metadata of the row (tests, entry_point, …).

The prompt keeps its spaces, because a code completion continues exactly where it ends. Rewards receive every other
column as `Corpus.metadata`. The answers are also `Corpus.answers`, and the oracle is then the answer key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rlhf_lab.core.types import Corpus
from rlhf_lab.data.asking import as_requested
from rlhf_lab.data.file_settings import Verifiable
from rlhf_lab.data.gsm8k import CONTRADICTS, AnswerKey
from rlhf_lab.data.loading import load_corpus
from rlhf_lab.data.messages import read_tools, text_or_messages
from rlhf_lab.data.prompts import EMPTY_PROMPT, NO_QUESTION
from rlhf_lab.data.roles import columns_problem
from rlhf_lab.data.rows import MissingColumns, RowProblem, column, describe, is_missing, text_column
from rlhf_lab.data.split_rows import SplitRow, prompt_oddities, read_prompt
from rlhf_lab.data.transcript import SAID, normalise, render_prompt, to_messages
from rlhf_lab.environments.maths.answers import same_answer

EMPTY_ANSWER = "empty answer"
MEANING = {
    "prompt": "what is asked",
    "answer": "the answer that a response must reach",
    "solution": "a worked solution",
}
WITHOUT_ANSWER = " (or data.answer= if rewards read other columns, such as tests)"


def build(settings: Verifiable) -> Corpus:
    """Load verifiable prompts. Raise DataError for unreadable rows; see `rlhf_lab.data.loading.load_corpus`."""
    answers: dict[str, str] = {}

    def parse(values: Mapping[str, Any]) -> SplitRow:
        split = parse_row(values, settings)
        if split.drop or not settings.answer:
            return split
        answer = _answer(values, settings.answer)
        if not answer:
            return dataclasses.replace(split, drop=EMPTY_ANSWER)
        first_answer = answers.setdefault(split.prompt, answer)  # the first row of a question decides
        return split if same_answer(first_answer, answer) else dataclasses.replace(split, drop=CONTRADICTS)

    corpus = load_corpus("verifiable", settings, parse)
    if not settings.answer:
        return corpus
    prompts = [pair.prompt for pair in (*corpus.train, *corpus.test)]
    answer_key = {prompt: answers[prompt] for prompt in prompts}
    return dataclasses.replace(corpus, answers=answer_key, oracle=AnswerKey(answer_key))


def parse_row(values: Mapping[str, Any], settings: Verifiable) -> SplitRow:
    """Return the prompt and, if there is one, the solution of a row. Raise RowProblem if a column is malformed."""
    problem = column_problem(values, settings)
    if problem:
        raise MissingColumns(problem)
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
    return SplitRow(prompt, solution, "", drop=drop, notes=prompt_oddities(prompt), asked=asked)


def _answer(values: Mapping[str, Any], name: str) -> str:
    value = column(values, name)
    if is_missing(value):
        value = None
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):  # bool is an int in Python
        raise RowProblem(f"column {name!r} is {describe(value)}; expected text or a number")
    # tables may hold answers as numbers
    return str(value).strip()


def column_problem(values: Mapping[str, Any], settings: Verifiable) -> str | None:
    """Return a message about the missing columns of a row, or None if it has all of them."""
    names = {role: getattr(settings, role) for role in MEANING if getattr(settings, role)}
    return columns_problem(values, names, MEANING, WITHOUT_ANSWER if "answer" in names else "")
