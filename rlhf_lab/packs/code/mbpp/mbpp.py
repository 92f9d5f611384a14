"""Rows of MBPP as prompts with hidden tests."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from rlhf_lab.core.types import Corpus
from rlhf_lab.data.loading import load_corpus
from rlhf_lab.data.rows import RowProblem, column, describe, is_text_list, text_column
from rlhf_lab.data.split_rows import SplitRow, as_requested, prompt_oddities
from rlhf_lab.data.transcript import render_prompt
from rlhf_lab.packs.code.mbpp.settings import MBPP

QUESTION = "{task}\n\nYour code should pass these tests:\n\n{tests}"
EMPTY_TASK = "empty task"
NO_TESTS = "no tests"
TASKS = ("text", "prompt")
"""Columns of the task, in order of preference: that of MBPP, and that of the sanitized version."""


def build(settings: MBPP) -> Corpus:
    """Load the tasks. Raise DataError for unreadable rows; see `rlhf_lab.data.loading.load_corpus`."""
    return load_corpus("mbpp", settings, partial(parse_row, settings=settings))


def parse_row(values: Mapping[str, Any], settings: MBPP) -> SplitRow:
    """Return the prompt and the solution of a row. Raise RowProblem if a column is missing or has another form."""
    # the two releases of MBPP name this column differently; an error names the first of them
    name = next((name for name in TASKS if name in values), TASKS[0])
    task = text_column(values, name).strip()
    solution = text_column(values, "code").replace("\r\n", "\n").strip("\n")
    tests = column(values, "test_list")
    if not is_text_list(tests):
        raise RowProblem(f"column 'test_list' is {describe(tests)}; expected a list of assertions as texts")
    question = task
    if shown := tests[: settings.shown_tests]:
        question = QUESTION.format(task=task, tests="\n".join(shown))
    asked = render_prompt([{"role": "user", "content": question}])
    prompt = as_requested(asked, settings)
    drop = None
    if not task:
        drop = EMPTY_TASK
    elif not tests:
        drop = NO_TESTS
    return SplitRow(prompt, solution, "", drop=drop, notes=prompt_oddities(prompt), asked=asked)
