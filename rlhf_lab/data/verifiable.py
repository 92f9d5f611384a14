"""Prompts whose replies can be checked: against an answer, or by what the row says besides (tests, entry_point, …).

The prompt keeps its spaces, because a completion of code goes on where it ends. Every further column reaches rewards as
`Corpus.facts`; the answers are `Corpus.answers` too, and the oracle is then the answer key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rlhf_lab.core.types import Corpus
from rlhf_lab.data.asking import as_asked
from rlhf_lab.data.file_settings import Verifiable
from rlhf_lab.data.gsm8k import CONTRADICTS, AnswerKey
from rlhf_lab.data.loading import load_corpus
from rlhf_lab.data.messages import read_tools, text_or_messages
from rlhf_lab.data.replies import Split, prompt_oddities
from rlhf_lab.data.roles import columns_problem
from rlhf_lab.data.rows import MissingColumns, RowProblem, column, describe, text_column
from rlhf_lab.data.transcript import render_prompt
from rlhf_lab.environments.maths.answers import same_answer

EMPTY_PROMPT = "empty prompt"
EMPTY_ANSWER = "empty answer"
MEANING = {"prompt": "what is asked", "answer": "the answer that a reply must reach", "solution": "a worked solution"}
WITHOUT_ANSWER = " (or data.answer= when rewards read other columns, such as tests)"


def build(settings: Verifiable) -> Corpus:
    """Load verifiable prompts. Raises DataError; see `rlhf_lab.data.loading.load_corpus`."""
    answers: dict[str, str] = {}

    def parse(values: Mapping[str, Any]) -> Split:
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
    answer_key = {pair.prompt: answers[pair.prompt] for pair in (*corpus.train, *corpus.test)}
    return dataclasses.replace(corpus, answers=answer_key, oracle=AnswerKey(answer_key))


def parse_row(values: Mapping[str, Any], settings: Verifiable) -> Split:
    """One row → prompt and, where there is one, a solution. Raises RowProblem when a column is missing or wrong."""
    problem = column_problem(values, settings)
    if problem:
        raise MissingColumns(problem)
    given = text_or_messages(values, settings.prompt)
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    prompt = as_asked(render_prompt(given, read_tools(values, settings.tools)), settings)
    solution = text_column(values, settings.solution).rstrip() if settings.solution else ""
    drop = None if given[-1]["content"].strip() else EMPTY_PROMPT
    return Split(prompt, solution, "", drop=drop, notes=prompt_oddities(prompt))


def _answer(values: Mapping[str, Any], name: str) -> str:
    value = column(values, name)
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise RowProblem(f"column {name!r} is {describe(value)}; expected text or a number")
    return str(value).strip()


def column_problem(values: Mapping[str, Any], settings: Verifiable) -> str | None:
    """What to say of a row that lacks columns; None for one that has them."""
    names = {role: getattr(settings, role) for role in MEANING if getattr(settings, role)}
    return columns_problem(values, names, MEANING, WITHOUT_ANSWER if "answer" in names else "")
