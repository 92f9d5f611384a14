"""Tests of a difference that stay valid at every look, for studies that add seeds until their claims are decided.

A look is a test of the seeds so far. After k ≥ 3 seeds, T_k is the mean difference over its standard error, and the
ordinary one-sided p-value is p_k = P(t_{k−1} > T_k). The statistic is the smallest p-value so far, weighted by how late
it came (the shape of Wang & Tsiatis 1987, for t statistics):

    q_n = min_{3≤k≤n} p_k / w_k,   w_k = √(3/k)        P_n = H(q_n)

H is the distribution of q_200 under no effect. For normal differences it depends on nothing unknown, because the T_k
are pivotal; `BOUNDARIES` is its simulated quantile function. Therefore P(P_n ≤ g at some look) ≤ g for every g: any
rule may stop the study, and Holm's adjustment over several claims holds at every look. P_n never rises. Skipping looks
only makes a test conservative.

The p-values are nominal for normal differences and conservative for heavy symmetric tails (docs/results/sequential.md).
They do not hold for strongly skewed differences, which belong on a log or logit scale.

Shapes: L looks; leading dimensions, such as claims or simulated studies, are allowed everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainc, betaln, stdtr, stdtrit

from rlhf_lab.core.errors import NumericError
from rlhf_lab.core.types import FloatArray
from rlhf_lab.statistics.estimates import LEVEL

FIRST, LAST = 3, 200
"""First and last number of seeds with a test; two differences have no usable standard deviation."""

BOUNDARIES: tuple[tuple[float, float], ...] = (
    (0.0001, 9.188e-06),
    (0.0002, 1.948e-05),
    (0.0004, 4.077e-05),
    (0.0007, 7.61e-05),
    (0.001, 0.0001118),
    (0.0015, 0.0001717),
    (0.002, 0.0002351),
    (0.003, 0.000368),
    (0.004, 0.0005037),
    (0.006, 0.0007929),
    (0.008, 0.001097),
    (0.01, 0.001413),
    (0.015, 0.002244),
    (0.02, 0.003128),
    (0.025, 0.004053),
    (0.03, 0.005026),
    (0.04, 0.00712),
    (0.05, 0.00935),
    (0.07, 0.01423),
    (0.1, 0.0225),
    (0.15, 0.03865),
    (0.2, 0.05765),
    (0.3, 0.1044),
    (0.4, 0.1638),
    (0.5, 0.238),
    (0.6, 0.3299),
    (0.7, 0.4432),
    (0.8, 0.5834),
    (0.9, 0.7599),
    (0.95, 0.868),
    (1, 1),
)
"""(level g, quantile of q_200 at g) under no effect, from 4 million simulated studies of 200 normal differences.

`python tests/campaign/sequential.py --calibrate` simulates it again.
"""


@dataclass(frozen=True)
class Looks:
    """Mean difference at every look.

    Attributes:
        mean_L, error_L: (…, L) mean over the independent differences so far, and its standard error ≥ 0.
        count_L: (…, L) or (L,) number of differences; it must not fall from look to look.
    """

    mean_L: FloatArray
    error_L: FloatArray
    count_L: FloatArray

    def __post_init__(self) -> None:
        means, errors, counts = np.shape(self.mean_L), np.shape(self.error_L), self.count_L.shape
        # one axis of counts serves any number of studies, which are leading axes of means and errors
        if means != errors or means[-1:] != counts[-1:]:
            raise NumericError(
                f"means, errors and counts of looks have shapes {means}, {errors} and {counts}; give one of each per "
                "look"
            )
        if np.any(np.diff(self.count_L) < 0):
            raise NumericError("the number of differences falls from one look to the next; give the looks in order")

    def negated(self) -> Looks:
        """Return the same looks with the sign of the difference reversed."""
        return Looks(-self.mean_L, self.error_L, self.count_L)


def looks_at(differences_S: ArrayLike, min_sd: float = 0.0) -> Looks:
    """Return a look after each of the (…, S) differences, with standard errors s/√k of at least `min_sd`/√k."""
    values_S = np.asarray(differences_S, dtype=np.float64)
    count_S = np.arange(1, values_S.shape[-1] + 1, dtype=np.float64)
    mean_S = values_S.cumsum(-1) / count_S
    squares_S = np.square(values_S).cumsum(-1) - count_S * mean_S**2
    variance_S = np.maximum(squares_S, 0) / np.maximum(count_S - 1, 1)  # rounding may make the sum of squares negative
    return Looks(mean_S, np.sqrt(np.maximum(variance_S, min_sd**2) / count_S), count_S)


def one_sided_p(looks: Looks, shift: float = 0.0) -> FloatArray:
    """Return the (…, L) sequential p-values of "the mean is at most `shift`", against a larger mean.

    A mean without error is exact: p is 0 if it is larger, else 1. Looks at fewer than `FIRST` differences, or at more
    than `LAST`, test nothing.
    """
    return level_of(_smallest_p(looks.mean_L - shift, looks))


def _smallest_p(gap_L: FloatArray, looks: Looks) -> FloatArray:
    """Return q, the smallest weighted one-sided p-value of a gap above 0 up to each look, (…, L)."""
    count_L = looks.count_L
    with np.errstate(divide="ignore", invalid="ignore"):
        exact_L = np.where(gap_L > 0, np.inf, -np.inf)  # of a mean without error
        t_L = np.where(looks.error_L > 0, gap_L / looks.error_L, exact_L)
        p_L = stdtr(count_L - 1, -t_L) / _weight(count_L)
    tested_L = (count_L >= FIRST) & (count_L <= LAST) & ~np.isnan(p_L)
    return np.minimum.accumulate(np.where(tested_L, p_L, np.inf), axis=-1)


def same_p(looks: Looks, margin: float) -> FloatArray:
    """Return the (…, L) sequential p-values of "|mean| ≥ margin": two one-sided tests (Schuirmann 1987)."""
    return np.maximum(one_sided_p(looks, -margin), one_sided_p(looks.negated(), -margin))


def beyond_p(looks: Looks, margin: float) -> FloatArray:
    """Return the (…, L) sequential p-values of "|mean| ≤ margin", against a larger difference in either direction."""
    return two_sided(one_sided_p(looks, margin), one_sided_p(looks.negated(), margin))


def smaller_p(looks: Looks, published: float) -> FloatArray:
    """Return the (…, L) sequential p-values of "the effect is at least the published one, in its direction"."""
    if published == 0:
        raise NumericError("a published effect of 0 has no direction; give its signed size")
    return one_sided_p(looks, published) if published < 0 else one_sided_p(looks.negated(), -published)


def two_sided(first_L: FloatArray, second_L: FloatArray) -> FloatArray:
    """Return two-sided p-values: twice the smaller p-value of two opposite one-sided tests, at most 1."""
    return np.minimum(1.0, 2 * np.minimum(first_L, second_L))


def sequential_interval(looks: Looks) -> tuple[FloatArray, FloatArray]:
    """Return (…, L) lower and upper bounds that hold at all looks together with probability LEVEL: the inverted test.

    A shift is inside while neither one-sided test has rejected it. The bounds are therefore intersections over the
    looks so far, and a lower bound may exceed its upper bound if differences drift.
    """
    count_L = looks.count_L
    tested_L = (count_L >= FIRST) & (count_L <= LAST)
    p_L = boundary_of((1 - LEVEL) / 2) * _weight(count_L)
    with np.errstate(invalid="ignore"):
        half_L = -stdtrit(np.maximum(count_L - 1, 1), p_L) * looks.error_L
    half_L = np.where(tested_L & ~np.isnan(half_L), half_L, np.inf)
    mean_L = np.where(np.isnan(looks.mean_L), 0.0, looks.mean_L)  # a look without a mean has no bounds
    return np.maximum.accumulate(mean_L - half_L, axis=-1), np.minimum.accumulate(mean_L + half_L, axis=-1)


def discordant_p(first_L: ArrayLike, second_L: ArrayLike) -> FloatArray:
    """Return the (…, L) sequential p-values of "a discordant pair is won by the first side with probability ≤ ½".

    For 0/1 outcomes only pairs with different outcomes tell the sides apart. With b won by the first side and c by the
    second, the e-value is the likelihood ratio against ½, averaged over Jeffreys' prior of θ on (½, 1):

        E = 2^{b+c+1} · B(b+½, c+½) / B(½, ½) · P(Beta(b+½, c+½) > ½)

    It is a supermartingale under the hypothesis, so P = 1/max E holds at every look (Ville 1939). Seven pairs, all won
    by the first side, give E = 53, which is enough for a two-sided test at 5 %.

    Args:
        first_L, second_L: (…, L) numbers of discordant pairs won by each side up to each look.
    """
    b_L, c_L = np.asarray(first_L, dtype=np.float64), np.asarray(second_L, dtype=np.float64)
    log_ratio_L = (b_L + c_L + 1) * np.log(2) + betaln(b_L + 0.5, c_L + 0.5) - betaln(0.5, 0.5)
    above_half_L = betainc(c_L + 0.5, b_L + 0.5, 0.5)  # P(Beta(b+½, c+½) > ½) by symmetry
    e_L = np.exp(log_ratio_L) * above_half_L
    return 1.0 / np.maximum(np.maximum.accumulate(e_L, axis=-1), 1.0)


def level_of(smallest: ArrayLike) -> FloatArray:
    """Return H, the sequential p-value of a smallest weighted p-value.

    Interpolated in `BOUNDARIES` on log scales. Below the table it is the bound of Bonferroni over all looks, Σ w_k · q.
    """
    q = np.asarray(smallest, dtype=np.float64)
    bound = np.minimum(_BONFERRONI * q, _LEVELS[0])
    with np.errstate(divide="ignore"):
        inside = np.exp(np.interp(np.log(q), np.log(_QUANTILES), np.log(_LEVELS)))
    return np.where(q < _QUANTILES[0], bound, inside)


def boundary_of(level: float) -> float:
    """Return the smallest weighted p-value whose sequential p-value is `level`, which the table must contain."""
    if not _LEVELS[0] <= level <= 1:
        raise NumericError(f"level {level:g} is outside the table, which begins at {_LEVELS[0]:g}; use a larger level")
    return float(np.exp(np.interp(np.log(level), np.log(_LEVELS), np.log(_QUANTILES))))


def _weight(count: FloatArray) -> FloatArray:
    """Return √(3/k), the share of the level that a look at k differences gets, relative to the first."""
    return np.sqrt(FIRST / np.maximum(count, FIRST))


_LEVELS, _QUANTILES = np.array(BOUNDARIES).T
_BONFERRONI = float(_weight(np.arange(FIRST, LAST + 1.0)).sum())
