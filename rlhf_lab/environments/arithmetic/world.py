"""Arithmetic world: word problems, demonstrations with slips, and a verifier that reads every step.

`ArithmeticWorld` is an `Oracle`: it grades any text as a response to one of its problems and labels any pair of
responses.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np

from rlhf_lab.core import measures
from rlhf_lab.core.errors import DataError
from rlhf_lab.core.types import FloatArray, LoadReport, Pair
from rlhf_lab.environments.annotator import AnnotatedWorld, Annotator, random_stream
from rlhf_lab.environments.arithmetic.problems import Problem, draw_problem, read_problem
from rlhf_lab.environments.arithmetic.solutions import (
    ParsedSolution,
    draw_slip,
    line_labels,
    read_solution,
    write_solution,
)
from rlhf_lab.environments.maths.answers import ballot
from rlhf_lab.environments.splits import require_split

VERSION = 1
"""Version, increased whenever the same settings give other texts or other grades; part of a corpus fingerprint."""

MEASURES = (
    *(measures.CORRECT, measures.GARBLE),
    *measures.details(
        sound="1 if the answer and every step are right, with no step missing",
        right_steps="number of steps that are right",
    ),
)
"""Columns of `ArithmeticWorld.measure`, in this order. A response with an unreadable line, or none, is garbled."""

ALL_STEPS = 0.5
"""Appeal to the annotator of a solution whose steps are all right. A right answer has appeal 1, so it counts more."""

PATIENCE = 20_000
"""Number of draws without a new problem after which the problems of a world count as exhausted."""


class ArithmeticWorld(AnnotatedWorld):
    """A world of word problems, each step of which can be checked.

    Args:
        min_steps: minimum number of events of a story, and thus of steps of its solution.
        max_steps: maximum number of events of a story.
        largest: largest total. Operands of + and − are up to a quarter of it.
        slip: probability that a demonstration has a slip, 0…1.
        temperature: noise of the annotator, in units of answers; 0 always chooses the better side, ties are a coin
            toss.
        seed: seed of the problems and the slips.

    Attributes:
        lenient: True if responses need not mark their answer with "####"; see `answers.final_answer`.
    """

    measures = MEASURES
    lenient = False

    def __init__(self, *, min_steps: int, max_steps: int, largest: int, slip: float, temperature: float, seed: int):
        self.min_steps = min_steps
        self.max_steps = max_steps
        self.largest = largest
        self.slip = slip
        # no biases: solutions have no padding that could appeal to the annotator
        super().__init__(Annotator(0.0, 0.0, 0.0, temperature), seed)

    def _measure_response(self, prompt: str, response: str) -> tuple[float, ...]:
        problem = read_problem(prompt)
        solution = read_solution(problem, response, lenient=self.lenient)
        readable = not solution.garbled and bool(response.strip())
        all_right = solution.labels == [1] * len(problem.events)
        sound = solution.correct and readable and all_right
        return solution.correct, not readable, sound, sum(solution.labels)

    def _appeal(self, prompts: Sequence[str], measured: dict[str, FloatArray]) -> FloatArray:
        """Return correct + `ALL_STEPS` × the fraction of the problem's steps that are right, (N,)."""
        steps = np.array([len(read_problem(prompt).events) for prompt in prompts], dtype=np.float64)
        return measured["correct"] + ALL_STEPS * measured["right_steps"] / steps

    def leniently(self) -> ArithmeticWorld:
        """Return a copy of this world that also reads answers that are not marked with "####"."""
        lenient = copy.copy(self)
        lenient.lenient = True
        return lenient

    def read_answers(self, responses: Sequence[str]) -> list[str | None]:
        """Return the final answers of responses, in the form used for majority votes."""
        return [ballot(response, lenient=self.lenient) for response in responses]

    def read(self, prompt: str, response: str) -> ParsedSolution:
        """Parse the steps and the answer of a response. Raise DataError for an unknown prompt."""
        return read_solution(read_problem(prompt), response, lenient=self.lenient)

    def step_labels(self, prompts: Sequence[str], responses: Sequence[str]) -> list[list[int]]:
        """Return 1 for each right line of each response, 0 for each wrong one; see `solutions.line_labels`."""
        pairs = zip(prompts, responses, strict=True)
        return [line_labels(read_problem(prompt), response) for prompt, response in pairs]

    def sample(self, n: int, split: str, *, seed: int = 0) -> tuple[list[Pair], LoadReport]:
        """Return n pairs of a split, each of a different problem, and a report that counts repeated problems.

        `chosen` is a demonstration: the solution, or with probability `slip` one with a slip. `rejected` always has a
        slip and a wrong answer, and differs from `chosen`. The first k of n pairs are the pairs of `sample(k, …)`.
        `Pair.meta` has `answer` and, for each side, `steps_` (1 for each right step, 0 for each wrong one) and
        `correct_` (0 or 1).
        """
        require_split(split)
        rng = random_stream([self._seed, seed], "problems", split)
        report = LoadReport(kept=n)
        seen: set[str] = set()
        pairs: list[Pair] = []
        while len(pairs) < n:
            problem = self._new_problem(rng, split, seen, report)
            pairs.append(self._draw_pair(problem, rng))
        return pairs, report

    def _new_problem(self, rng: np.random.Generator, split: str, seen: set[str], report: LoadReport) -> Problem:
        """Sample a problem of a split that is not in `seen`, and add it there. Raise DataError if none is left."""
        for _ in range(PATIENCE):
            problem = draw_problem(rng, min_steps=self.min_steps, max_steps=self.max_steps, largest=self.largest)
            if problem.split != split:
                continue
            report.rows += 1
            if problem.text not in seen:
                seen.add(problem.text)
                return problem
            report.drop("problem drawn before")
        raise DataError(
            f"the arithmetic world has hardly more than {len(seen)} {split} problems of {self.min_steps}…"
            f"{self.max_steps} steps up to {self.largest}; request fewer, or raise data.max_steps or data.largest"
        )

    def _draw_pair(self, problem: Problem, rng: np.random.Generator) -> Pair:
        """Return a demonstration, which may have a slip, and a wrong solution that differs from it."""
        slips = rng.random() < self.slip
        chosen = write_solution(problem, draw_slip(problem, self.largest, rng) if slips else None)
        rejected = chosen
        while rejected == chosen:  # both may have sampled the same slip
            rejected = write_solution(problem, draw_slip(problem, self.largest, rng))
        meta: dict[str, object] = {"answer": str(problem.answer)}
        for side, response in (("chosen", chosen), ("rejected", rejected)):
            solution = read_solution(problem, response)
            meta |= {f"steps_{side}": solution.labels, f"correct_{side}": int(solution.correct)}
        return Pair(problem.text, chosen, rejected, meta)
