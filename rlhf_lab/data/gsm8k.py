"""GSM8K (arXiv:2110.14168) and files of its form: word problems, each with a worked solution and its final answer.

Only demonstrations: `rejected` is empty. The oracle is the answer key; nothing else is known about a response.
`Pair.meta["annotated"]` is the solution with its calculator annotations, which state what each step computes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NoReturn

import numpy as np

from rlhf_lab.core.errors import DataError, LabError
from rlhf_lab.core.measures import CORRECT
from rlhf_lab.core.types import Corpus, FloatArray
from rlhf_lab.data.file_settings import GSM8K, PromptFileSettings
from rlhf_lab.data.loading import Parse, load_corpus
from rlhf_lab.data.rows import text_column
from rlhf_lab.data.split_rows import SplitRow, as_requested, prompt_oddities
from rlhf_lab.data.transcript import render_prompt
from rlhf_lab.environments.maths.answers import ballot, final_answer, is_number, same_answer, states_answer
from rlhf_lab.environments.maths.chains import without_annotations

NO_ANSWER = 'no number after "####"'
EMPTY_QUESTION = "empty question"
CONTRADICTS = "other answer than the same question before"


def build(settings: GSM8K) -> Corpus:
    """Load GSM8K. Raise DataError for unreadable rows; see `rlhf_lab.data.loading.load_corpus`."""
    return load_with_answers("gsm8k", settings, partial(parse_row, settings=settings))


def load_with_answers(name: str, settings: PromptFileSettings, parse: Parse) -> Corpus:
    """Load a corpus whose oracle is the answer key. A row with another answer than its question before is dropped."""
    answers: dict[str, str] = {}

    def parse_consistent(values: Mapping[str, Any]) -> SplitRow:
        split = parse(values)
        if split.drop or same_answer(answers.setdefault(split.prompt, split.answer), split.answer):
            return split
        return dataclasses.replace(split, drop=CONTRADICTS)

    # `parse_consistent` has filled `answers` when loading returns
    corpus = load_corpus(name, settings, parse_consistent)
    answer_key = {pair.prompt: answers[pair.prompt] for pair in (*corpus.train, *corpus.test)}
    return dataclasses.replace(corpus, answers=answer_key, oracle=AnswerKey(answer_key))


def parse_row(values: Mapping[str, Any], settings: GSM8K) -> SplitRow:
    """Return prompt and solution of one row. Raise RowProblem if a column is missing or not text."""
    question = text_column(values, "question").strip()
    solution = text_column(values, "answer").strip()
    # kept before annotations are stripped: perturbed solutions are generated from it
    meta = {"annotated": solution}
    if settings.annotations == "strip":
        solution = without_annotations(solution)
    asked = render_prompt([{"role": "user", "content": question}])
    prompt = as_requested(asked, settings)
    answer = final_answer(solution)
    drop = None
    if not question:
        drop = EMPTY_QUESTION
    elif answer is None:
        drop = NO_ANSWER
    notes = prompt_oddities(prompt)
    return SplitRow(prompt, solution, "", drop=drop, notes=notes, meta=meta, asked=asked, answer=answer or "")


class AnswerKey:
    """`Oracle` that knows only final answers.

    Args:
        lenient: method of reading an answer from a response; see `final_answer`.
    """

    measures = (CORRECT,)

    def __init__(self, answers: Mapping[str, str], *, lenient: bool = False):
        self._answers = answers
        self._lenient = lenient

    def leniently(self) -> AnswerKey:
        return AnswerKey(self._answers, lenient=True)

    def measure(self, prompts: Sequence[str], responses: Sequence[str]) -> dict[str, FloatArray]:
        """Return "correct" (N,): 1 if the response states the answer, else 0. Raise DataError for unknown prompts."""
        correct = [self._is_right(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]
        return {"correct": np.array(correct, float)}

    def read_answers(self, responses: Sequence[str]) -> list[str | None]:
        return [ballot(response, lenient=self._lenient, in_words=self._in_words) for response in responses]

    @cached_property
    def _in_words(self) -> bool:
        """True if at least one answer is not a number. Computed only once."""
        return not all(map(is_number, self._answers.values()))

    def _is_right(self, prompt: str, response: str) -> bool:
        if prompt not in self._answers:
            raise DataError(
                f"the answer key has no answer to {prompt.strip()[:60]!r}; grade only prompts of the same corpus"
            )
        return states_answer(response, self._answers[prompt], lenient=self._lenient)

    def prefer(self, prompts: Sequence[str], first: Sequence[str], second: Sequence[str], *, seed: int) -> NoReturn:
        """Raise LabError: an answer key cannot rank two wrong or two correct responses."""
        raise LabError(
            "an answer key labels no pairs, because it only distinguishes correct answers from wrong ones; grade "
            "responses with oracle.measure, or use data=arithmetic, whose annotator compares responses"
        )
