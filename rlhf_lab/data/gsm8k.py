"""GSM8K (arXiv:2110.14168) and files of its form: word problems, a worked solution each, and its final answer.

Demonstrations only: `rejected` is empty. The oracle is the answer key; nothing else about a reply is known.
`Pair.meta["annotated"]` is the solution with its calculator annotations, which say what each step computes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from rlhf_lab.core.errors import DataError, LabError
from rlhf_lab.core.measures import CORRECT
from rlhf_lab.core.types import Corpus, FloatArray
from rlhf_lab.data.asking import as_asked
from rlhf_lab.data.file_settings import GSM8K
from rlhf_lab.data.loading import load_corpus
from rlhf_lab.data.replies import Split, prompt_oddities
from rlhf_lab.data.rows import text_column
from rlhf_lab.data.transcript import render_prompt
from rlhf_lab.environments.maths.answers import ballot, final_answer, reaches, same_answer
from rlhf_lab.environments.maths.chains import without_annotations

NO_ANSWER = 'no number after "####"'
EMPTY_QUESTION = "empty question"
CONTRADICTS = "other answer than the same question before"


def build(settings: GSM8K) -> Corpus:
    """Load GSM8K. Raises DataError; see `rlhf_lab.data.loading.load_corpus`."""
    answers: dict[str, str] = {}

    def parse(values: Mapping[str, Any]) -> Split:
        split = parse_row(values, settings)
        answer = final_answer(split.chosen)
        if split.drop or answer is None:
            return split
        first_answer = answers.setdefault(split.prompt, answer)  # the first row of a question decides
        if same_answer(first_answer, answer):
            return split
        return dataclasses.replace(split, drop=CONTRADICTS)

    corpus = load_corpus("gsm8k", settings, parse)
    answer_key = {pair.prompt: answers[pair.prompt] for pair in (*corpus.train, *corpus.test)}
    return dataclasses.replace(corpus, answers=answer_key, oracle=AnswerKey(answer_key))


def parse_row(values: Mapping[str, Any], settings: GSM8K) -> Split:
    """One row → prompt and solution. Raises RowProblem when a column is missing or not text."""
    question = text_column(values, "question").strip()
    solution = text_column(values, "answer").strip()
    meta = {"annotated": solution}
    if settings.annotations == "strip":
        solution = without_annotations(solution)
    prompt = as_asked(render_prompt([{"role": "user", "content": question}]), settings)
    drop = None
    if not question:
        drop = EMPTY_QUESTION
    elif final_answer(solution) is None:
        drop = NO_ANSWER
    return Split(prompt, solution, "", drop=drop, notes=prompt_oddities(prompt), meta=meta)


class AnswerKey:
    """An `Oracle` that knows final answers and nothing else.

    Args:
        answers: prompt → answer.
        lenient: how replies are read; see `final_answer`.
    """

    measures = (CORRECT,)

    def __init__(self, answers: Mapping[str, str], *, lenient: bool = False):
        self._answers = answers
        self._lenient = lenient

    def leniently(self) -> AnswerKey:
        return AnswerKey(self._answers, lenient=True)

    def measure(self, prompts: Sequence[str], responses: Sequence[str]) -> dict[str, FloatArray]:
        """ "correct" (N,): 1 where the reply states the answer, else 0. Raises DataError for unknown prompts."""
        pairs = zip(prompts, responses, strict=True)
        correct = [self._is_right(prompt, response) for prompt, response in pairs]
        return {"correct": np.array(correct, float)}

    def read_answers(self, responses: Sequence[str]) -> list[str | None]:
        return [ballot(response, lenient=self._lenient) for response in responses]

    def _is_right(self, prompt: str, response: str) -> bool:
        if prompt not in self._answers:
            raise DataError(
                f"the answer key has no answer to {prompt.strip()[:60]!r}; it grades the corpus' own prompts"
            )
        return reaches(response, self._answers[prompt], lenient=self._lenient)

    def prefer(self, prompts: Sequence[str], first: Sequence[str], second: Sequence[str], *, seed: int) -> NoReturn:
        """Raises LabError: an answer key does not say which of two wrong, or of two right, replies is better."""
        raise LabError(
            "an answer key labels no pairs: it tells right answers from wrong ones and nothing between; "
            "grade replies with oracle.measure, or use data=arithmetic, whose annotator prefers replies"
        )
