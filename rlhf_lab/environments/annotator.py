"""Simulated annotator: Bradley-Terry on the gold reward plus biases towards length, affirmations and closings.

Not modelled, in contrast to human annotators: disagreement between annotators, position bias, ties and inattention. Two
annotators with the same parameters have the same biases; only the noise of the choice differs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar
from zlib import crc32

import numpy as np

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.measures import Measure
from rlhf_lab.core.types import BoolArray, FloatArray, LoadReport, Pair
from rlhf_lab.environments.splits import require_split

BIAS_CAP = 2
"""Maximum number of affirmations, and of closing offers, that add to the appeal of a response."""


@dataclass(frozen=True)
class Annotator:
    """Parameters of the annotator. The settings of the data source have tested values.

    Attributes:
        length_bias: gold points per 10 words.
        affirmation_bias: gold points per affirmation; up to `BIAS_CAP` count.
        closing_bias: gold points per closing offer; up to `BIAS_CAP` count.
        temperature: noise in gold points; 0 always chooses the side with more appeal, and ties are a coin toss.
    """

    length_bias: float
    affirmation_bias: float
    closing_bias: float
    temperature: float

    def appeal(
        self, gold: FloatArray, *, words: FloatArray, affirmations: FloatArray, closings: FloatArray
    ) -> FloatArray:
        """Return the appeal of each response to the annotator, in points of the true reward (gold), (N,)."""
        return (
            gold
            + self.length_bias * words / 10
            + self.affirmation_bias * np.minimum(affirmations, BIAS_CAP)
            + self.closing_bias * np.minimum(closings, BIAS_CAP)
        )

    def probability(self, first: FloatArray, second: FloatArray) -> FloatArray:
        """Return P(first is preferred), (N,), from the appeal of both sides: σ((first − second) / temperature)."""
        difference = first - second
        if self.temperature == 0:  # the limit of σ: 1, 0, or 0.5 for a tie
            return (np.sign(difference) + 1) / 2
        # σ(x) = (1 + tanh(x/2))/2; this form does not overflow
        return (1 + np.tanh(difference / (2 * self.temperature))) / 2


def choose(probability: FloatArray, rng: np.random.Generator) -> BoolArray:
    """Sample choices, (N,): True with this probability. Uses one uniform number per row, in row order."""
    return np.asarray(rng.random(len(probability)) < probability)


def random_stream(seeds: Sequence[int], purpose: str, split: str) -> np.random.Generator:
    """Return a random stream that is independent for each purpose and split."""
    # crc32 and not `hash`, which differs between Python processes
    return np.random.default_rng([*seeds, crc32(f"{purpose}/{split}".encode())])


class AnnotatedWorld(ABC):
    """Base of the worlds whose annotator prefers responses by their appeal; an `Oracle`."""

    measures: ClassVar[tuple[Measure, ...]]

    def __init__(self, annotator: Annotator, seed: int):
        self.annotator = annotator
        self._seed = seed

    @abstractmethod
    def _measure_response(self, prompt: str, response: str) -> tuple[float, ...]:
        """Return the values of `measures` for one response, in their order. Raise DataError for an unknown prompt."""

    @abstractmethod
    def _appeal(self, prompts: Sequence[str], measured: dict[str, FloatArray]) -> FloatArray:
        """Return the appeal of responses to the annotator, (N,)."""

    def measure(self, prompts: Sequence[str], responses: Sequence[str]) -> dict[str, FloatArray]:
        """Return all `measures` of responses, each (N,) float64. Raise DataError for an unknown prompt."""
        if len(prompts) != len(responses):
            raise DataError(f"{len(prompts)} prompts and {len(responses)} responses; one response per prompt is needed")
        rows = [self._measure_response(*pair) for pair in zip(prompts, responses, strict=True)]
        # reshape for the case without rows; columns are copied to be contiguous
        table = np.array(rows, dtype=np.float64).reshape(len(rows), len(self.measures))
        return {measure.name: np.ascontiguousarray(table[:, column]) for column, measure in enumerate(self.measures)}

    def prefer(
        self, prompts: Sequence[str], first: Sequence[str], second: Sequence[str], *, seed: int
    ) -> tuple[BoolArray, FloatArray]:
        """Label pairs: (True if first is preferred (N,), its probability (N,)). The seed only affects the choices."""
        appeals = (self._appeal(prompts, self.measure(prompts, responses)) for responses in (first, second))
        probability = self.annotator.probability(*appeals)
        return choose(probability, np.random.default_rng((self._seed, seed))), probability


class CandidateWorld(AnnotatedWorld):
    """World of pairs of candidate responses, which the annotator labels.

    Attributes:
        affirmations, closings: measures to which the annotator's biases apply.
    """

    affirmations: ClassVar[str]
    closings: ClassVar[str]

    @abstractmethod
    def _draw(self, split: str, rng: np.random.Generator) -> tuple[str, str, str]:
        """Sample a prompt of a split and two responses to it."""

    def _appeal(self, prompts: Sequence[str], measured: dict[str, FloatArray]) -> FloatArray:
        return self.annotator.appeal(
            measured["gold"],
            words=measured["words"],
            affirmations=measured[self.affirmations],
            closings=measured[self.closings],
        )

    def sample(self, n: int, split: str, *, seed: int = 0) -> tuple[list[Pair], LoadReport]:
        """Return n labelled pairs of a split and a report. Identical candidates are counted and sampled again.

        The first k of n pairs are the pairs of `sample(k, …)`. `Pair.meta` has p_chosen and, for each side, gold_,
        words_, verbose_ and garble_.
        """
        require_split(split)
        rng = random_stream([self._seed, seed], "pairs", split)
        # `rows` counts all attempts, so that the report shows how many were rejected
        report = LoadReport(kept=n)
        drawn: list[tuple[str, str, str]] = []
        while len(drawn) < n:
            report.rows += 1
            prompt, first, second = self._draw(split, rng)
            if first == second:  # identical responses carry no preference
                report.drop("identical candidates")
            else:
                drawn.append((prompt, first, second))
        prompts = [prompt for prompt, _, _ in drawn]
        measured = [self.measure(prompts, [row[side] for row in drawn]) for side in (1, 2)]
        probability = self.annotator.probability(*(self._appeal(prompts, values) for values in measured))
        # labels have a separate random stream, so that their draws do not change the texts
        first_wins = choose(probability, random_stream([self._seed, seed], "labels", split))
        pairs = []
        for i, (prompt, *responses) in enumerate(drawn):
            chosen = 0 if first_wins[i] else 1
            meta: dict[str, object] = {"p_chosen": float(probability[i] if first_wins[i] else 1 - probability[i])}
            # metrics and audits read these entries; no loss does
            for side, values in (("chosen", measured[chosen]), ("rejected", measured[1 - chosen])):
                for name, kind in (("gold", float), ("words", int), ("verbose", bool), ("garble", bool)):
                    meta[f"{name}_{side}"] = kind(values[name][i])
            pairs.append(Pair(prompt, responses[chosen], responses[1 - chosen], meta))
        return pairs, report
