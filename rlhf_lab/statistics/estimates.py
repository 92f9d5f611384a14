"""Estimates with intervals, comparisons with their evidence, and checks that reject impossible numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from rlhf_lab.core.errors import NumericError
from rlhf_lab.core.types import FloatArray

LEVEL = 0.95
"""Confidence level of intervals."""
POWER = 0.8
"""Probability of detecting a difference of the minimum detectable size."""


@dataclass(frozen=True)
class Estimate:
    """Point estimate with a confidence interval.

    Attributes:
        mean: point estimate (of a mean, difference, ratio or rate); NaN if nothing was scored.
        low, high: bounds at the confidence `level`; -inf and inf if the data cannot bound the value.
        n, unscored: number of scored rows, and of rows left out because they had no score.
        clusters: number of independent units (prompts, tasks, seeds) among the scored rows.
    """

    mean: float
    low: float
    high: float
    n: int
    clusters: int
    level: float = LEVEL
    unscored: int = 0

    def __post_init__(self) -> None:
        # Bounds are computed separately from the mean, so rounding may put the mean slightly outside.
        slack = 1e-6 * max(1.0, abs(self.mean))
        is_outside = self.mean < self.low - slack or self.mean > self.high + slack
        if self.low > self.high or is_outside:
            raise NumericError(f"estimate {self.mean} lies outside its own interval [{self.low}, {self.high}]")
        if not 0 <= self.clusters <= self.n:
            raise NumericError(f"estimate has clusters={self.clusters} out of n={self.n} rows")

    @property
    def bounded(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0

    def within(self, low: float, high: float) -> Estimate:
        """Return the estimate with its interval clipped to possible values, which a t interval may exceed."""
        return replace(self, low=max(self.low, low), high=min(self.high, high))

    def negated(self) -> Estimate:
        """Return the estimate with the opposite sign."""
        return replace(self, mean=-self.mean, low=-self.high, high=-self.low)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dict; a missing mean and an infinite bound are null."""
        finite = {name: finite_or_none(getattr(self, name)) for name in ("mean", "low", "high")}
        return {**asdict(self), **finite}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Estimate:
        """Read the output of `to_dict`. Only `mean` is required; a missing bound is infinite."""

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
    """Difference with its test and the smallest difference that the sample could have shown.

    Attributes:
        difference: mean of a − b over pairs, clustered.
        p_value: two-sided p-value; NaN if it cannot be computed (one cluster).
        minimum_detectable_effect: true difference found with probability `power` if the standard deviation equals the
            observed one; inf if there is none.
        test: name of the test that gives `p_value`.
        power: probability that defines the minimum detectable effect.
        standard_error: standard error of the difference in the t test; NaN if there is no test.
        freedom: degrees of freedom of the t test; NaN if there is no test.
        fixed_error: part of the standard error that more repetitions would not reduce.
    """

    difference: Estimate
    p_value: float
    minimum_detectable_effect: float
    test: str
    power: float = POWER
    standard_error: float = math.nan
    freedom: float = math.nan
    fixed_error: float = 0.0

    def detectable_range(self) -> tuple[float, float]:
        """Return bounds of the minimum detectable effect at the interval's level; NaN without a test.

        They follow from the interval of the standard deviation, s·√(ν/χ²_ν). With three differences the standard
        deviation is only known within a factor from about a half to six.
        """
        if not self.freedom >= 1:
            return math.nan, math.nan
        # ν·s²/σ² has a χ² distribution with ν degrees of freedom.
        tail = (1 - self.difference.level) / 2
        low_factor = math.sqrt(self.freedom / stats.chi2.ppf(1 - tail, self.freedom))
        high_factor = math.sqrt(self.freedom / stats.chi2.ppf(tail, self.freedom))
        return self.minimum_detectable_effect * low_factor, self.minimum_detectable_effect * high_factor

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dict; NaN and infinite numbers are null."""
        return {
            "difference": self.difference.to_dict(),
            "p_value": finite_or_none(self.p_value),
            "minimum_detectable_effect": finite_or_none(self.minimum_detectable_effect),
            "test": self.test,
            "power": self.power,
        }


def as_estimate(value: object) -> Estimate | None:
    """Convert a number or a stored estimate (a bare number gets n = 0 and no bounds); None for anything else."""
    if isinstance(value, Estimate):
        return value
    if isinstance(value, Mapping) and "mean" in value:
        return Estimate.from_dict(value)
    if value is None or isinstance(value, int | float):
        return Estimate(math.nan if value is None else float(value), -math.inf, math.inf, 0, 0)
    return None


def finite_or_none(value: float) -> float | None:
    """Return None for NaN and infinity, which JSON cannot store."""
    return value if math.isfinite(value) else None


def largest_first(estimates: Mapping[str, Estimate]) -> list[str]:
    """Return the names of estimates, the largest mean first and those without a scored row last."""
    return sorted(estimates, key=lambda name: (math.isnan(estimates[name].mean), -estimates[name].mean))


def format_estimate(estimate: Estimate, *, digits: int = 2) -> str:
    """Return text such as "1.24 ±0.08", "0.90 [0.60, 0.98]" (asymmetric), "1.24 [no interval]" or "unscored"."""
    mean, low, high = estimate.mean, estimate.low, estimate.high
    if math.isnan(mean):
        return "unscored"
    if not estimate.bounded:
        return f"{mean:.{digits}f} [no interval]"
    above, below = high - mean, mean - low
    # 2 % is invisible at the printed precision, and t intervals are symmetric by construction.
    is_symmetric = abs(above - below) <= 0.02 * (above + below) + 1e-12
    if is_symmetric:
        return f"{mean:.{digits}f} ±{above:.{digits}f}"
    return f"{mean:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def check_mean(mean: float, rows: ArrayLike, *, decimals: int | None = None) -> None:
    """Raise NumericError for a mean that does not match its (N,) rows, within `decimals` or 6 significant digits."""
    values = floats(rows)
    values = values[~np.isnan(values)]
    if not values.size:
        if not math.isnan(mean):
            raise NumericError(f"mean {mean:g} was reported although no row is scored")
        return
    expected = float(values.mean())
    slack = 1e-6 * max(1.0, abs(expected))
    if decimals is not None:
        slack = 0.5 * 10.0**-decimals + 1e-9
    if not abs(mean - expected) <= slack:
        raise NumericError(f"mean {mean:g} does not match its {values.size} rows, whose mean is {expected:g}")


def win_or_tie(difference: ArrayLike) -> FloatArray:
    """Return 1 for a positive difference, 0 for a negative one, ½ for 0, and NaN for NaN."""
    return np.sign(np.asarray(difference, dtype=np.float64)) / 2 + 0.5


def cluster_labels(clusters_N: ArrayLike) -> np.ndarray:
    """Return cluster labels as a flat array, (N,). Texts, such as prompts, become integers in their sorted order.

    An array of texts has the width of its longest text in every row, so one long prompt would take gigabytes.
    """
    if isinstance(clusters_N, Sequence) and all(isinstance(label, str) for label in clusters_N):
        number = {label: index for index, label in enumerate(sorted(set(clusters_N)))}
        return np.array([number[label] for label in clusters_N], dtype=int)
    return np.asarray(clusters_N).ravel()


def floats(values: ArrayLike) -> FloatArray:
    """Return any array-like as a flat float64 array; None, as in JSON rows, becomes NaN."""
    array = np.asarray(values)
    # NumPy makes an object array of a list that contains None.
    if array.dtype == object:
        array = np.array([np.nan if value is None else value for value in array.ravel()])
    return array.astype(np.float64).ravel()
