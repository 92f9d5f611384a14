"""What moves a judge besides quality: the place of a reply, its length, its author.

Position needs no truth: the same two replies are shown in both orders. Length and authorship do: longer replies may be
better, and so may be those of the judge's own model. Truth is a known quality or what people say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from rlhf_lab.core.errors import NumericError
from rlhf_lab.core.types import FloatArray
from rlhf_lab.packs.judging.statistics.win_rates import win_rate, within
from rlhf_lab.statistics.estimates import LEVEL, Estimate, floats
from rlhf_lab.statistics.inference import clustered_mean
from rlhf_lab.statistics.logistic import LogisticFit, clustered_logistic


@dataclass(frozen=True)
class PositionBias:
    """How the order of two replies decides, among comparisons that were scored in both orders.

    Attributes:
        first_shown_wins: share of single votes for the reply shown first, ties half; .5 without a bias.
        consistent: share of comparisons with the same outcome in both orders.
        first_both: share in which the reply shown first won in both orders: the order alone decided.
        second_both: share in which the reply shown second won in both orders.
    """

    first_shown_wins: Estimate
    consistent: Estimate
    first_both: Estimate
    second_both: Estimate

    @property
    def decided_by_order(self) -> float:
        """Share of comparisons in which a place won, whoever stood there."""
        return self.first_both.mean + self.second_both.mean


def position_bias(
    shown_first_N: ArrayLike, shown_second_N: ArrayLike, prompts_N: ArrayLike, *, level: float = LEVEL
) -> PositionBias:
    """The bias for a place.

    Every comparison counts in both orders or not at all: with single orders, better replies that happen to be shown
    first would pass for a bias. The mean of the two orders favours neither reply: equal ones get ½ each, whatever the
    bias. A strong bias still hides differences, for it pulls the mean of unequal ones towards ½.

    Args:
        shown_first_N: (N,) score of reply A (1, ½, 0; NaN = unscored) when A is shown first.
        shown_second_N: (N,) score of the same reply when it is shown second.
        prompts_N: (N,) prompt of each comparison.
    """
    first_N, second_N = floats(shown_first_N), floats(shown_second_N)
    _same_length(first_N, second_N)
    missing_N = np.isnan(first_N) | np.isnan(second_N)

    def share(outcome_N: ArrayLike) -> Estimate:
        return win_rate(np.where(missing_N, np.nan, outcome_N), prompts_N, level=level)

    return PositionBias(
        first_shown_wins=share((first_N + 1 - second_N) / 2),
        consistent=share(first_N == second_N),
        first_both=share((first_N == 1) & (second_N == 0)),
        second_both=share((first_N == 0) & (second_N == 1)),
    )


def excess_preference(
    judge_N: ArrayLike, truth_N: ArrayLike, favoured_N: ArrayLike, prompts_N: ArrayLike, *, level: float = LEVEL
) -> Estimate:
    """How much more often a judge prefers a kind of reply than the truth does, such as longer ones or its own.

    Mean of (judge's score − true score) of the favoured reply, over comparisons in which one reply is of that kind and
    the other is not. .1: preferred in ten of a hundred comparisons more than the truth has it. A judge that errs at
    random is pulled towards ½ and so towards 0 excess from either side; that pull is part of this number.

    Args:
        judge_N, truth_N: (N,) score of reply A by the judge and in truth (1, ½, 0; NaN = unscored).
        favoured_N: (N,) 1 where A is of the kind and B is not, 0 the other way round, NaN where both or neither are.
        prompts_N: (N,) prompt of each comparison.
    """
    judge_N, truth_N, favoured_N = floats(judge_N), floats(truth_N), floats(favoured_N)
    _same_length(judge_N, truth_N, favoured_N)
    kept_N = ~np.isnan(favoured_N)
    sign_n = 2 * favoured_N[kept_N] - 1
    excess_n = sign_n * (judge_N - truth_N)[kept_N]
    return within(clustered_mean(excess_n, np.asarray(prompts_N).ravel()[kept_N], level=level), -1.0, 1.0)


@dataclass(frozen=True)
class ChoiceModel:
    """What a judge's votes follow, all at once.

    Attributes:
        coefficients: name of a column → logits per unit of it, for A.
        problem: why there is no finite estimate; empty when there is one.
    """

    coefficients: dict[str, Estimate]
    problem: str = ""


def choice_model(
    vote_N: ArrayLike, columns: Mapping[str, ArrayLike], prompts_N: ArrayLike, *, level: float = LEVEL
) -> ChoiceModel:
    """Logistic regression of single votes for A on what differs between A and B.

        P(the vote is for A) = σ(Σ_c b_c·x_c)

    Every column changes its sign when A and B are exchanged, so there is no intercept. Usual columns: position, +1
    where A is shown first and −1 where second; the length difference, as it is or through `win_rates.saturated`; own,
    +1 where A alone is by the judge's model and −1 where B alone is; truth, the difference in quality.

    With the true quality in logits the coefficients of the others are the judge's biases. A label (±1, 0 for a tie) in
    its place stands for quality only in part: what of quality goes along with length and is not in the label is then
    counted as a bias for length. The interval is cluster-robust by prompt.

    Args:
        vote_N: (N,) 1 for A, ½ for a tie, 0 for B, NaN = unscored; two rows for a comparison in both orders.
        columns: name → (N,).
        prompts_N: (N,) prompt of each vote.
    """
    arrays = {name: floats(values) for name, values in columns.items()}
    vote_N = floats(vote_N)
    _same_length(vote_N, *arrays.values())
    design_NM = np.stack(list(arrays.values()), axis=1)
    fit: LogisticFit = clustered_logistic(design_NM, vote_N, prompts_N)
    coefficients = {name: fit.estimate(column, level=level) for column, name in enumerate(arrays)}
    return ChoiceModel(coefficients, fit.problem)


def _same_length(*arrays: FloatArray) -> None:
    lengths = {len(array) for array in arrays}
    if len(lengths) > 1:
        raise NumericError(f"columns have different lengths ({sorted(lengths)}); give one value per row in each")
