"""Simulated annotator: Bradley-Terry on the gold reward plus biases towards length, affirmations and closings.

Not modelled, in contrast to human annotators: disagreement between annotators, position bias, ties and inattention. Two
annotators with the same parameters have the same biases; only the noise of the choice differs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.measures import Measure
from rlhf_lab.core.types import BoolArray, FloatArray, LoadReport, Pair

Candidates = tuple[list[str], list[str], list[str]]
"""Prompts, and two candidate responses to each."""
Measured = dict[str, FloatArray]
"""Measure → its values for N responses, each (N,)."""

BIAS_CAP = 2
"""Maximum number of affirmations, and of closing offers, that add to the appeal of a response."""


@dataclass(frozen=True)
class Annotator:
    """Parameters of the annotator. The settings of the data source have tested values.

    Args:
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

    def prefer(self, first: FloatArray, second: FloatArray, *, seed: Sequence[int]) -> tuple[BoolArray, FloatArray]:
        """Label pairs by the appeal of both sides: (True if first is preferred (N,), its probability (N,))."""
        probability = self.probability(first, second)
        return choose(probability, np.random.default_rng(seed)), probability


def measure_rows(
    measures: Sequence[Measure],
    measure_one: Callable[[str, str], tuple[float, ...]],
    prompts: Sequence[str],
    responses: Sequence[str],
) -> Measured:
    """Return all measures of a world for responses to its prompts, each (N,) float64.

    Args:
        measures: measures of the world, in the order of the values of `measure_one`.
        measure_one: function of a prompt and a response that returns the values of the response.
    """
    if len(prompts) != len(responses):
        raise DataError(f"{len(prompts)} prompts and {len(responses)} responses; one response per prompt is needed")
    rows = [measure_one(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]
    # reshape for the case without rows; columns are copied to be contiguous
    table = np.array(rows, dtype=np.float64).reshape(len(rows), len(measures))
    return {measure.name: np.ascontiguousarray(table[:, column]) for column, measure in enumerate(measures)}


def choose(probability: FloatArray, rng: np.random.Generator) -> BoolArray:
    """Sample choices, (N,): True with this probability. Uses one uniform number per row, in row order."""
    return np.asarray(rng.random(len(probability)) < probability)


def distinct_candidates(draw: Callable[[], tuple[str, str, str]], n: int) -> tuple[Candidates, LoadReport]:
    """Return n prompts with two different responses each, and a report. Identical pairs are counted and sampled again.

    Args:
        draw: returns a prompt and two responses.
        n: number of prompts.
    """
    # `rows` counts all attempts, so that the report shows how many were rejected
    report = LoadReport(kept=n)
    prompts: list[str] = []
    first: list[str] = []
    second: list[str] = []
    while len(prompts) < n:
        report.rows += 1
        prompt, candidate_1, candidate_2 = draw()
        # a pair of identical responses carries no preference
        if candidate_1 == candidate_2:
            report.drop("identical candidates")
            continue
        prompts.append(prompt)
        first.append(candidate_1)
        second.append(candidate_2)
    return (prompts, first, second), report


def labelled_pairs(
    candidates: Candidates, measured: tuple[Measured, Measured], probability: FloatArray, rng: np.random.Generator
) -> list[Pair]:
    """Return pairs labelled by an annotator. `Pair.meta` has p_chosen and the entries of `_describe_sides`.

    Args:
        candidates: prompts and two responses to each.
        measured: measures of the first and of the second responses.
        probability: probability that the first response is preferred, (N,).
        rng: generator that samples the choices.
    """
    prompts, first, second = candidates
    first_measured, second_measured = measured
    pairs = []
    for i, first_is_chosen in enumerate(choose(probability, rng).tolist()):
        if first_is_chosen:
            responses = (first[i], second[i])
            sides = (first_measured, second_measured)
            p_chosen = float(probability[i])
        else:
            responses = (second[i], first[i])
            sides = (second_measured, first_measured)
            p_chosen = float(1 - probability[i])
        meta = {"p_chosen": p_chosen, **_describe_sides(*sides, i)}
        pairs.append(Pair(prompts[i], *responses, meta=meta))
    return pairs


def _describe_sides(chosen: Measured, rejected: Measured, i: int) -> dict[str, float | int | bool]:
    """Return the entries of `Pair.meta` about both sides of pair i."""
    meta: dict[str, float | int | bool] = {}
    # metrics and audits read these columns; no loss does
    for side, measured in (("chosen", chosen), ("rejected", rejected)):
        meta[f"gold_{side}"] = float(measured["gold"][i])
        meta[f"words_{side}"] = int(measured["words"][i])
        meta[f"verbose_{side}"] = bool(measured["verbose"][i])
        meta[f"garble_{side}"] = bool(measured["garble"][i])
    return meta
