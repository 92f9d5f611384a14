"""The simulated annotator: Bradley-Terry on the true reward plus biases towards length, affirmations and closings.

Left out compared with people: disagreement between annotators, position bias, ties and inattention. Two annotators with
the same parameters share every bias; only the noise of the choice differs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rlhf_lab.core.types import BoolArray, FloatArray, LoadReport, Pair

Candidates = tuple[list[str], list[str], list[str]]
"""Prompts, and two candidate replies to each."""
Measured = dict[str, FloatArray]
"""What a world measures of replies, each (N,)."""

BIAS_CAP = 2
"""Affirmations and closing offers beyond this number add nothing to the appeal of a reply."""


@dataclass(frozen=True)
class Annotator:
    """Parameters of the annotator. Their vetted values are in the settings of the data source.

    Args:
        length_bias: gold points per 10 words.
        affirmation_bias: gold points per affirmation, at most `BIAS_CAP` count.
        closing_bias: gold points per closing offer, at most `BIAS_CAP` count.
        temperature: gold points; 0 always takes the side that looks better, and tosses a coin on a tie.
    """

    length_bias: float
    affirmation_bias: float
    closing_bias: float
    temperature: float

    def appeal(
        self, gold: FloatArray, *, words: FloatArray, affirmations: FloatArray, closings: FloatArray
    ) -> FloatArray:
        """How good replies look to the annotator, in gold points, (N,)."""
        return (
            gold
            + self.length_bias * words / 10
            + self.affirmation_bias * np.minimum(affirmations, BIAS_CAP)
            + self.closing_bias * np.minimum(closings, BIAS_CAP)
        )

    def probability(self, first: FloatArray, second: FloatArray) -> FloatArray:
        """P(first is preferred), (N,), from the appeal of both sides: σ((first − second) / temperature)."""
        difference = first - second
        if self.temperature == 0:
            return (np.sign(difference) + 1) / 2
        # σ(x) = (1 + tanh(x/2))/2, which does not overflow
        return (1 + np.tanh(difference / (2 * self.temperature))) / 2


def choose(probability: FloatArray, rng: np.random.Generator) -> BoolArray:
    """Draw choices, (N,): True with the given probability. One uniform number per row, in row order."""
    return np.asarray(rng.random(len(probability)) < probability)


def distinct_candidates(draw: Callable[[], tuple[str, str, str]], n: int) -> tuple[Candidates, LoadReport]:
    """n prompts with two different replies each, and what was drawn: identical replies are counted and drawn again.

    Args:
        draw: gives a prompt and two replies.
    """
    report = LoadReport(kept=n)
    prompts: list[str] = []
    first: list[str] = []
    second: list[str] = []
    while len(prompts) < n:
        report.rows += 1
        prompt, candidate_1, candidate_2 = draw()
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
    """Pairs as an annotator labels them. `Pair.meta` has p_chosen and, for each side, what `_describe_sides` takes.

    Args:
        measured: of the first and of the second replies.
        probability: that the first one is preferred, (N,).
        rng: draws the choices.
    """
    prompts, first, second = candidates
    first_measured, second_measured = measured
    pairs = []
    for i, first_is_chosen in enumerate(choose(probability, rng).tolist()):
        if first_is_chosen:
            replies, sides = (first[i], second[i]), (first_measured, second_measured)
            p_chosen = float(probability[i])
        else:
            replies, sides = (second[i], first[i]), (second_measured, first_measured)
            p_chosen = float(1 - probability[i])
        pairs.append(Pair(prompts[i], *replies, meta={"p_chosen": p_chosen, **_describe_sides(*sides, i)}))
    return pairs


def _describe_sides(chosen: Measured, rejected: Measured, i: int) -> dict[str, float | int | bool]:
    """The entries of `Pair.meta` about both sides of pair i."""
    meta: dict[str, float | int | bool] = {}
    for side, measured in (("chosen", chosen), ("rejected", rejected)):
        meta[f"gold_{side}"] = float(measured["gold"][i])
        meta[f"words_{side}"] = int(measured["words"][i])
        meta[f"verbose_{side}"] = bool(measured["verbose"][i])
        meta[f"garble_{side}"] = bool(measured["garble"][i])
    return meta
