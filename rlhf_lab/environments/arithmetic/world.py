"""The arithmetic world: word problems, demonstrations with slips, and a verifier that reads every step.

`ArithmeticWorld` is an `Oracle`: it grades any text as a reply to one of its problems and labels any pair of replies.
Reading path: problems.py → answers.py → solutions.py → here.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from zlib import crc32

import numpy as np

from rlhf_lab.core import measures
from rlhf_lab.core.errors import DataError, require
from rlhf_lab.core.types import BoolArray, FloatArray, LoadReport, Pair
from rlhf_lab.environments.annotator import Annotator, choose
from rlhf_lab.environments.arithmetic.problems import Problem, draw_problem, read_problem
from rlhf_lab.environments.arithmetic.solutions import Solution, draw_slip, line_labels, read_solution, write_solution
from rlhf_lab.environments.maths.answers import ballot
from rlhf_lab.environments.splits import SPLITS

VERSION = 1
"""Increased whenever the same settings give other text or other grades; part of a corpus fingerprint."""

MEASURES = (
    *(measures.CORRECT, measures.GARBLE),
    *measures.details(
        sound="1 where the answer is right and so is every step, with none missing",
        right_steps="steps that are right",
    ),
)
"""What `ArithmeticWorld.measure` returns, in this order. A reply is garbled where a line is unreadable, or there is
none."""

ALL_STEPS = 0.5
"""Appeal of all steps of the solution to the annotator, beside 1 for the right answer: the answer counts more."""

PATIENCE = 20_000
"""Draws without a new problem after which a world counts as used up."""


class ArithmeticWorld:
    """A world of word problems whose every step can be checked.

    Args:
        min_steps, max_steps: events of a story, and so steps of its solution.
        largest: the largest total. Operands of + and − are at most a quarter of it.
        slip: probability that a demonstration has a slip, 0…1.
        temperature: of the annotator, in answers; 0 always takes the better side, and tosses a coin on a tie.
        seed: draws the problems and the slips.

    Attributes:
        lenient: whether replies need not mark their answer with "####"; see `answers.final_answer`.
    """

    measures = MEASURES
    lenient = False

    def __init__(self, *, min_steps: int, max_steps: int, largest: int, slip: float, temperature: float, seed: int):
        require(
            (1 <= min_steps <= max_steps, f"min_steps={min_steps} must be between 1 and max_steps={max_steps}"),
            (10 <= largest <= 10_000, f"largest={largest} is outside 10…10000"),
            (0 <= slip <= 1, f"slip={slip} is a probability, 0…1"),
            (temperature >= 0, f"temperature={temperature} is negative; 0 is a noiseless annotator"),
            (seed >= 0, f"seed={seed} is negative"),
        )
        self.min_steps = min_steps
        self.max_steps = max_steps
        self.largest = largest
        self.slip = slip
        self.annotator = Annotator(0.0, 0.0, 0.0, temperature)
        self._seed = seed

    def measure(self, prompts: Sequence[str], responses: Sequence[str]) -> dict[str, FloatArray]:
        """Grade replies: every one of `MEASURES`, each (N,) float64. Raises DataError for an unknown prompt."""
        if len(prompts) != len(responses):
            raise DataError(f"{len(prompts)} prompts and {len(responses)} responses; one response per prompt is needed")
        rows = [
            _measure_reply(prompt, response, self.lenient) for prompt, response in zip(prompts, responses, strict=True)
        ]
        table = np.array(rows, dtype=np.float64).reshape(len(rows), len(MEASURES))
        return {measure.name: np.ascontiguousarray(table[:, column]) for column, measure in enumerate(MEASURES)}

    def leniently(self) -> ArithmeticWorld:
        """The same world, which also reads answers that are not marked with "####"."""
        lenient = copy.copy(self)
        lenient.lenient = True
        return lenient

    def read_answers(self, responses: Sequence[str]) -> list[str | None]:
        """The final answers of replies, as they are counted in a vote."""
        return [ballot(response, lenient=self.lenient) for response in responses]

    def read(self, prompt: str, response: str) -> Solution:
        """A reply's steps, each judged against the problem, and its answer. Raises DataError for an unknown prompt."""
        return read_solution(read_problem(prompt), response, lenient=self.lenient)

    def step_labels(self, prompts: Sequence[str], responses: Sequence[str]) -> list[list[int]]:
        """1 for each right line of each reply, 0 for each wrong one; see `solutions.line_labels`."""
        pairs = zip(prompts, responses, strict=True)
        return [line_labels(read_problem(prompt), response) for prompt, response in pairs]

    def prefer(
        self, prompts: Sequence[str], first: Sequence[str], second: Sequence[str], *, seed: int
    ) -> tuple[BoolArray, FloatArray]:
        """Label pairs: (first is preferred (N,), probability that it is (N,)). The seed draws the choices only.

        Bradley-Terry on correct + `ALL_STEPS` × the share of the problem's steps that are right, over the temperature.
        """
        probability = self.annotator.probability(self._appeal(prompts, first), self._appeal(prompts, second))
        rng = np.random.default_rng([self._seed, seed])
        return choose(probability, rng), probability

    def _appeal(self, prompts: Sequence[str], responses: Sequence[str]) -> FloatArray:
        measured = self.measure(prompts, responses)
        steps = np.array([len(read_problem(prompt).events) for prompt in prompts], dtype=np.float64)
        return measured["correct"] + ALL_STEPS * measured["right_steps"] / steps

    def sample(self, n: int, split: str, *, seed: int = 0) -> tuple[list[Pair], LoadReport]:
        """n pairs of a split, each of its own problem, and what was drawn: a problem drawn again is counted and left.

        `chosen` is a demonstration: the solution, or with probability `slip` one with a slip. `rejected` always has a
        slip and a wrong answer, and differs from `chosen`. The first k of n pairs are the pairs of `sample(k, …)`.
        `Pair.meta` has `answer` and, for each side, `steps_` (1 for each right step, 0 for each wrong one) and
        `correct_` (0 or 1).
        """
        if split not in SPLITS:
            raise DataError(f"split {split!r} is unknown; use {' or '.join(SPLITS)}")
        rng = np.random.default_rng([self._seed, seed, crc32(f"problems/{split}".encode())])
        report = LoadReport(kept=n)
        seen: set[str] = set()
        pairs: list[Pair] = []
        while len(pairs) < n:
            problem = self._new_problem(rng, split, seen, report)
            pairs.append(self._draw_pair(problem, rng))
        return pairs, report

    def _new_problem(self, rng: np.random.Generator, split: str, seen: set[str], report: LoadReport) -> Problem:
        """A problem of a split whose text is not in `seen`; adds it there. Raises DataError when none is left."""
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
            f"{self.max_steps} steps up to {self.largest}; ask for fewer, or raise data.max_steps or data.largest"
        )

    def _draw_pair(self, problem: Problem, rng: np.random.Generator) -> Pair:
        """A demonstration, which may slip, and a wrong solution that differs from it."""
        slips = rng.random() < self.slip
        chosen = write_solution(problem, draw_slip(problem, self.largest, rng) if slips else None)
        rejected = chosen
        while rejected == chosen:
            rejected = write_solution(problem, draw_slip(problem, self.largest, rng))
        meta: dict[str, object] = {"answer": str(problem.answer)}
        for side, reply in (("chosen", chosen), ("rejected", rejected)):
            solution = read_solution(problem, reply)
            meta |= {f"steps_{side}": solution.labels, f"correct_{side}": int(solution.correct)}
        return Pair(problem.text, chosen, rejected, meta)


def _measure_reply(prompt: str, response: str, lenient: bool) -> tuple[float, ...]:
    """Values of `MEASURES` for one reply, in their order."""
    problem = read_problem(prompt)
    solution = read_solution(problem, response, lenient=lenient)
    readable = not solution.garbled and bool(response.strip())
    sound = solution.correct and readable and solution.labels == [1] * len(problem.events)
    return solution.correct, not readable, sound, sum(solution.labels)
