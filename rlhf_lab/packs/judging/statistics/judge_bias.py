"""Biases of a judge: position of a response, its length, its author.

Position bias needs no truth: the same two responses are shown in both orders. Length and author do need it, because
longer responses may be better, and so may be those of the judge's own model. The truth is a known quality or people's
labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from rlhf_lab.core.errors import NumericError
from rlhf_lab.core.types import FloatArray
from rlhf_lab.packs.judging.statistics.win_rates import win_rate
from rlhf_lab.statistics.estimates import Estimate, cluster_labels, floats
from rlhf_lab.statistics.inference import clustered_mean


@dataclass(frozen=True)
class PositionBias:
    """Effect of the order of two responses, among comparisons that were scored in both orders.

    Attributes:
        first_shown_wins: fraction of single votes for the response shown first, ties half; 0.5 without a bias.
        consistent: fraction of comparisons with the same outcome in both orders.
        first_both: fraction in which the response shown first won in both orders: the order alone decided.
        second_both: fraction in which the response shown second won in both orders.
    """

    first_shown_wins: Estimate
    consistent: Estimate
    first_both: Estimate
    second_both: Estimate


def position_bias(shown_first_N: ArrayLike, shown_second_N: ArrayLike, prompts_N: ArrayLike) -> PositionBias:
    """Return the position bias.

    A comparison counts in both orders or not at all. With single orders, better responses that happen to be shown first
    would look like a bias. The mean of the two orders favours neither response: equal ones get ½ each, whatever the
    bias. A strong bias still hides differences, because it pulls the mean of unequal responses towards ½.

    Args:
        shown_first_N: (N,) score of response A (1, ½, 0; NaN = unscored) when A is shown first.
        shown_second_N: (N,) score of the same response when it is shown second.
        prompts_N: (N,) prompt of each comparison.
    """
    first_N = floats(shown_first_N)
    second_N = floats(shown_second_N)
    _same_length(first_N, second_N)
    missing_N = np.isnan(first_N) | np.isnan(second_N)

    def fraction(outcome_N: ArrayLike) -> Estimate:
        return win_rate(np.where(missing_N, np.nan, outcome_N), prompts_N)

    # 1 − second_N is the score of the response that was shown first in the second order
    return PositionBias(
        first_shown_wins=fraction((first_N + 1 - second_N) / 2),
        consistent=fraction(first_N == second_N),
        first_both=fraction((first_N == 1) & (second_N == 0)),
        second_both=fraction((first_N == 0) & (second_N == 1)),
    )


def excess_preference(judge_N: ArrayLike, truth_N: ArrayLike, favoured_N: ArrayLike, prompts_N: ArrayLike) -> Estimate:
    """Return how much more often a judge prefers a kind of response than the truth does, e.g. longer ones or its own.

    It is the mean of (judge's score − true score) of the favoured response, over comparisons in which only one response
    is of that kind. 0.1 means preferred in ten of a hundred comparisons more than in truth. A judge with random errors
    is pulled towards ½, and so towards an excess of 0 from either side; that pull is part of this number.

    Args:
        judge_N, truth_N: (N,) score of response A by the judge and in truth (1, ½, 0; NaN = unscored).
        favoured_N: (N,) 1 if A is of the kind and B is not, 0 in the opposite case, NaN if both or neither are.
        prompts_N: (N,) prompt of each comparison.
    """
    judge_N = floats(judge_N)
    truth_N = floats(truth_N)
    favoured_N = floats(favoured_N)
    _same_length(judge_N, truth_N, favoured_N)
    kept_N = ~np.isnan(favoured_N)
    sign_n = 2 * favoured_N[kept_N] - 1  # scores are those of A, so the excess changes its sign if B is favoured
    excess_n = sign_n * (judge_N - truth_N)[kept_N]
    prompts_n = cluster_labels(prompts_N)[kept_N]
    return clustered_mean(excess_n, prompts_n).within(-1.0, 1.0)


def _same_length(*arrays: FloatArray) -> None:
    lengths = {len(array) for array in arrays}
    if len(lengths) > 1:
        raise NumericError(f"columns have different lengths ({sorted(lengths)}); pass one value per row in each")
