"""A number with its uncertainty, a comparison with its evidence, and checks that refuse impossible numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from rlhf_lab.core.errors import NumericError
from rlhf_lab.core.types import FloatArray

LEVEL = 0.95
"""Confidence level of intervals."""
POWER = 0.8
"""Probability with which a detectable difference is found."""


@dataclass(frozen=True)
class Estimate:
    """A number and how well it is known.

    Attributes:
        mean: the point estimate (of a mean, difference, ratio or rate). NaN when nothing was scored.
        low, high: confidence bounds; -inf and inf when the data cannot bound it (one cluster, say).
        n: scored rows.
        clusters: independent units among them (prompts, tasks, seeds).
        level: confidence level of the interval.
        unscored: rows left out because they had no score.
    """

    mean: float
    low: float
    high: float
    n: int
    clusters: int
    level: float = LEVEL
    unscored: int = 0

    def __post_init__(self) -> None:
        slack = 1e-6 * max(1.0, abs(self.mean))
        if self.low > self.high or self.mean < self.low - slack or self.mean > self.high + slack:
            raise NumericError(f"estimate {self.mean} lies outside its own interval [{self.low}, {self.high}]")
        if not 0 <= self.clusters <= self.n:
            raise NumericError(f"estimate has clusters={self.clusters} out of n={self.n} rows")

    @property
    def bounded(self) -> bool:
        """Whether the interval is finite."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; a missing mean and an infinite bound are null."""
        return {
            "mean": _finite_or_none(self.mean),
            "low": _finite_or_none(self.low),
            "high": _finite_or_none(self.high),
            "n": self.n,
            "clusters": self.clusters,
            "level": self.level,
            "unscored": self.unscored,
        }

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Estimate:
        """Inverse of `to_dict`. Only `mean` is required; a missing bound is infinite."""

        def number(name: str, missing: float) -> float:
            value = row.get(name)
            return missing if value is None else float(value)

        n = int(number("n", number("clusters", 0)))
        return cls(
            mean=number("mean", math.nan),
            low=number("low", -math.inf),
            high=number("high", math.inf),
            n=n,
            clusters=int(number("clusters", n)),
            level=number("level", LEVEL),
            unscored=int(number("unscored", 0)),
        )


@dataclass(frozen=True)
class Comparison:
    """A difference, the evidence that it is not zero, and what the sample could have shown.

    Attributes:
        difference: mean of a − b over pairs, clustered.
        p_value: two-sided; NaN when it cannot be computed (one cluster).
        minimum_detectable_effect: the true difference found with probability `power`, if the standard deviation is
            the observed one; inf when none is.
        test: name of the test behind `p_value`.
        standard_error, freedom: of the t test: the difference over `standard_error` has `freedom` degrees of freedom.
            NaN when there is no test.
        fixed_error: the part of the standard error that more repetitions would not make smaller.
    """

    difference: Estimate
    p_value: float
    minimum_detectable_effect: float
    test: str
    power: float = POWER
    standard_error: float = math.nan
    freedom: float = math.nan
    fixed_error: float = 0.0

    @property
    def distinguishable(self) -> bool:
        """Whether the test tells the difference from zero at the interval's level."""
        return self.p_value <= 1 - self.difference.level

    def detectable_range(self) -> tuple[float, float]:
        """Bounds of the minimum detectable effect at the interval's level; NaN without a test.

        They are those of the standard deviation behind it, s·√(ν/χ²_ν). From three differences it is known from a half
        to six times its value.
        """
        if not self.freedom >= 1:
            return math.nan, math.nan
        tail = (1 - self.difference.level) / 2
        low_factor = math.sqrt(self.freedom / stats.chi2.ppf(1 - tail, self.freedom))
        high_factor = math.sqrt(self.freedom / stats.chi2.ppf(tail, self.freedom))
        return self.minimum_detectable_effect * low_factor, self.minimum_detectable_effect * high_factor

    def to_dict(self) -> dict[str, Any]:
        return {
            "difference": self.difference.to_dict(),
            "p_value": _finite_or_none(self.p_value),
            "minimum_detectable_effect": _finite_or_none(self.minimum_detectable_effect),
            "test": self.test,
            "power": self.power,
        }


def _finite_or_none(value: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return value if math.isfinite(value) else None


def format_estimate(estimate: Estimate, *, digits: int = 2) -> str:
    """ "1.24 ±0.08"; "0.90 [0.60, 0.98]" when lopsided; "1.24 [no interval]" when unbounded; "unscored"."""
    mean, low, high = estimate.mean, estimate.low, estimate.high
    if math.isnan(mean):
        return "unscored"
    if not estimate.bounded:
        return f"{mean:.{digits}f} [no interval]"
    above, below = high - mean, mean - low
    is_symmetric = abs(above - below) <= 0.02 * (above + below) + 1e-12
    if is_symmetric:
        return f"{mean:.{digits}f} ±{above:.{digits}f}"
    return f"{mean:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def check_rate(rate: float, n: int, *, decimals: int | None = None) -> None:
    """Refuse a rate that no count out of `n` can give, such as 45 % of 10 tasks.

    Args:
        rate: a fraction in [0, 1].
        decimals: decimals the fraction was rounded to for print; None = not rounded.
    """
    if n < 1 or not 0 <= rate <= 1:
        raise NumericError(f"rate {rate} of {n} is impossible: a rate lies in [0, 1] and needs n ≥ 1")
    slack = 1e-9 if decimals is None else 0.5 * 10.0**-decimals + 1e-9
    nearest_count = round(rate * n)
    if abs(nearest_count / n - rate) > slack:
        neighbours = (math.floor(rate * n), math.ceil(rate * n))
        options = " and ".join(f"{count}/{n} = {count / n:g}" for count in neighbours)
        raise NumericError(f"rate {rate:g} of {n} is impossible; the nearest are {options}")


def check_mean(mean: float, rows: ArrayLike, *, decimals: int | None = None) -> None:
    """Refuse a mean that does not match its (N,) scored rows, to rounding in `decimals` or to 6 digits."""
    values = floats(rows)
    values = values[~np.isnan(values)]
    if not values.size:
        if not math.isnan(mean):
            raise NumericError(f"mean {mean:g} was reported for no scored rows")
        return
    expected = float(values.mean())
    slack = 1e-6 * max(1.0, abs(expected)) if decimals is None else 0.5 * 10.0**-decimals + 1e-9
    if not abs(mean - expected) <= slack:
        raise NumericError(f"mean {mean:g} does not match its {values.size} rows, whose mean is {expected:g}")


def floats(values: ArrayLike) -> FloatArray:
    """Any array-like as flat float64; None, as in JSON rows, becomes NaN."""
    array = np.asarray(values)
    if array.dtype == object:
        array = np.array([np.nan if value is None else value for value in array.ravel()])
    return array.astype(np.float64).ravel()
