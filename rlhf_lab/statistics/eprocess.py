"""Sequential tests that stay valid however often they are looked at: an e-process by betting, and a lower bound.

Both read comparisons of a policy with a fixed competitor. A comparison scores w = 1 if the policy wins, ½ for a tie and
0 if it loses. The null hypothesis is that each comparison has E[w | all earlier ones] ≥ ½. The e-process multiplies

    E_n = ∏ᵢ (1 + λᵢ · (½ − wᵢ)),    0 ≤ λᵢ ≤ MAX_BET < 2

where the bet λᵢ depends only on comparisons before i. Every factor is positive and has a conditional mean of at most 1
under the null, so E is a nonnegative supermartingale, and by Ville's inequality P(E_n ≥ 1/α for any n) ≤ α. The bets
are those of "approximate GRAPA" (arXiv:2010.09686, section B.3), with a memory that fades, because a policy may first
improve and then decline. They affect the power of the test, not its error rate.

Left out: a mixture of several bets, control variates, and comparisons that are selected with unequal probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

MAX_BET = 1.5
"""Largest bet. The smallest factor is 1 − MAX_BET/2 = ¼, so one lost bet never ends the game."""
MEMORY = 80
"""Number of comparisons after which their weight in a bet has fallen to 1/e."""
PRIOR = 16
"""Weight, in comparisons, of the prior belief that the policy and its competitor are equal and ties do not occur."""
LARGEST = 1e300
"""Largest e-value that is reported, and the inverse of the smallest; JSON has no infinity."""


class EProcess:
    """E-process against the null hypothesis that a policy is at least as good as its competitor."""

    def __init__(self) -> None:
        self.log_e = self.log_max = 0.0  # logarithms of the current and the largest e-value
        self.count = 0
        # Fading sums over earlier comparisons of x = ½ − w: their weights, x, and x².
        self._weight = self._sum = self._squares = 0.0

    @property
    def e_value(self) -> float:
        return _exponential(self.log_e)

    @property
    def largest(self) -> float:
        """Largest e-value so far; the test rejects once it reaches 1/α."""
        return _exponential(self.log_max)

    def bet(self) -> float:
        """Return the bet on the next comparison, from 0 to MAX_BET."""
        weight = self._weight + PRIOR
        mean = self._sum / weight
        second_moment = (self._squares + PRIOR / 4) / weight  # x² of a comparison without a tie is ¼
        return min(max(mean / second_moment, 0.0), MAX_BET)

    def update(self, scores: Sequence[float]) -> None:
        """Add comparisons in order: 1 for a win of the policy, ½ for a tie, 0 for a loss.

        An unanswered comparison (NaN) changes nothing. Raises ValueError for a score outside [0, 1].
        """
        fading = math.exp(-1 / MEMORY)
        for score in scores:
            if math.isnan(score):
                continue
            if not 0 <= score <= 1:
                raise ValueError(f"a comparison has the score {score}; it must be from 0 (loss) to 1 (win)")
            # the bet depends on earlier comparisons only; otherwise the product would not be an e-process
            x = 0.5 - score
            self.log_e += math.log1p(self.bet() * x)
            self.log_max = max(self.log_max, self.log_e)
            self.count += 1
            self._weight = fading * self._weight + 1
            self._sum = fading * self._sum + x
            self._squares = fading * self._squares + x * x

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON-like values."""
        sums = [self._weight, self._sum, self._squares]
        return {"log_e": self.log_e, "log_max": self.log_max, "count": self.count, "sums": sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.log_e = float(state["log_e"])
        self.log_max = float(state["log_max"])
        self.count = int(state["count"])
        self._weight, self._sum, self._squares = map(float, state["sums"])


def _exponential(logarithm: float) -> float:
    limit = math.log(LARGEST)
    return math.exp(min(max(logarithm, -limit), limit))


def lower_bound(scores: Sequence[float], *, alpha: float, looks: int) -> float:
    """Return a lower bound on the mean of E[w | earlier comparisons] over these comparisons; 0 without any.

    The bound is mean − √(log(looks/α) / 2n) (Azuma 1967, Hoeffding 1963). The policy may differ between comparisons.
    If `looks` such bounds are computed, all of them hold at the same time with a probability of at least 1 − α, however
    one of them is selected. The scores are in [0, 1], without NaN.
    """
    if not len(scores):
        return 0.0
    margin = math.sqrt(math.log(looks / alpha) / (2 * len(scores)))
    return max(0.0, sum(scores) / len(scores) - margin)
