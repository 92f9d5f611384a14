"""The simulated annotator: Bradley-Terry on the true reward plus biases towards length, affirmations and closings.

Left out compared with people: disagreement between annotators, position bias, ties and inattention. Two annotators with
the same parameters share every bias; only the noise of the choice differs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlhf_lab.core.types import BoolArray, FloatArray

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
