"""Over-optimisation: how far a policy can follow a proxy before the gold reward decreases.

Gao, Schulman & Hilton (arXiv:2210.10760, §3.1): with d = √KL(π ‖ π_ref), KL in nats per response, the gold reward
gained over the reference follows

    R_bon(d) = d·(α − β·d)         best of n samples        maximum at d* = α / 2β
    R_RL(d)  = d·(α − β·ln d)      a trained policy         maximum at d* = exp(α/β − 1)

Both are linear in (α, β) and 0 at d = 0, so ordinary least squares without intercept fits them. The reference itself
(d = 0) is on every such curve; it carries no information and is left out.

The curve is fitted per seed, and a Student t interval is computed over the seeds' α, β and ln d*. Policies along one
run have the same noise, so a seed is the independent unit. With 3 seeds, t has 2 degrees of freedom and the interval is
accordingly wide.

Each curve is also compared with the other one: both are fitted to all seeds but one, and the policies of that seed are
scored by their log-likelihood under each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from rlhf_lab.core.errors import NumericError
from rlhf_lab.core.types import FloatArray
from rlhf_lab.statistics.estimates import Estimate, floats
from rlhf_lab.statistics.inference import seed_mean

Form = Literal["bon", "rl"]
PeakPosition = Literal["inside", "before", "beyond", "never"]
RIVAL: dict[Form, Form] = {"bon": "rl", "rl": "bon"}
"""Form of a curve → the other form, which has as many parameters."""
Points = tuple[FloatArray, FloatArray]
"""Distances √KL and gold gains of policies, each (N,)."""


@dataclass(frozen=True)
class Fit:
    """Fitted over-optimisation curve.

    Attributes:
        alpha: initial gain per √nat.
        beta: loss of gain per √nat (bon) or per e-fold of d (rl).
        r_squared: fraction of the variance of the gains that the curve explains. It is negative if the mean alone
            fits better, and NaN if all gains are equal.
        n: number of points with d > 0.
        d_min, d_max: observed range of d, in √nats.
    """

    form: Form
    alpha: float
    beta: float
    r_squared: float
    n: int
    d_min: float
    d_max: float

    @property
    def log_peak(self) -> float:
        """ln d*; inf if the curve has no maximum (β ≤ 0), −inf if it falls from the start (bon with α ≤ 0)."""
        if not self.beta > 0:
            return math.inf
        ratio = self.alpha / self.beta
        if self.form == "rl":
            return ratio - 1
        return math.log(ratio / 2) if ratio > 0 else -math.inf

    @property
    def peak_d(self) -> float:
        """Distance d* of the maximum, in √nats; inf if there is none."""
        return _exp(self.log_peak)

    @property
    def peak_kl(self) -> float:
        """KL at the maximum, in nats; inf if there is none."""
        return _exp(2 * self.log_peak)

    @property
    def peak_gain(self) -> float:
        """Gain at the maximum: α²/4β (bon), β·d* (rl); inf if there is none."""
        if not self.beta > 0:
            return math.inf
        # Inserting d* gives α·d*/2 (bon) and β·d* (rl).
        return max(self.alpha, 0.0) * self.peak_d / 2 if self.form == "bon" else self.beta * self.peak_d

    @property
    def position(self) -> PeakPosition:
        """Position of the maximum relative to the observed policies; all positions but `inside` are extrapolated."""
        if self.beta <= 0:
            return "never"
        if self.peak_d > self.d_max:
            return "beyond"
        return "inside" if self.peak_d >= self.d_min else "before"

    @property
    def falls(self) -> bool:
        """True if the curve falls from the start: no maximum among the observed policies, and no gain above 0.

        A straight fall is fitted with β near 0, of either sign, so the position of the maximum says nothing about it.
        """
        ends_2 = self.gain([self.d_min, self.d_max])
        return self.position in ("never", "before") and self.alpha <= 0 and bool((ends_2 <= 0).all())

    def gain(self, d_N: ArrayLike) -> FloatArray:
        """Return the gain predicted at (N,) distances ≥ 0, in √nats."""
        return _basis(self.form, floats(d_N)) @ np.array([self.alpha, self.beta])


def fit_curve(form: Form, d_N: ArrayLike, gain_N: ArrayLike) -> Fit:
    """Fit the curve by least squares through the origin. Points at d = 0 or with a NaN are left out.

    Raises:
        NumericError: there are fewer than two distinct distances, the minimum for two parameters.
    """
    d_N, gain_N = _usable_points(d_N, gain_N)
    distinct = np.unique(d_N).size
    if distinct < 2:
        raise NumericError(
            f"a curve needs policies at two or more distances from the reference, not {distinct}; evaluate more of them"
        )
    basis_N2 = _basis(form, d_N)
    (alpha, beta), *_ = np.linalg.lstsq(basis_N2, gain_N, rcond=None)
    residual_squares = float(np.square(gain_N - basis_N2 @ [alpha, beta]).sum())
    total_squares = float(np.square(gain_N - gain_N.mean()).sum())
    r_squared = 1 - residual_squares / total_squares if total_squares > 0 else math.nan
    return Fit(form, float(alpha), float(beta), r_squared, int(d_N.size), float(d_N.min()), float(d_N.max()))


@dataclass(frozen=True)
class Summary:
    """α, β and maximum of a curve, with intervals. The maximum is None if it is not defined; see `SeedFits`."""

    alpha: Estimate
    beta: Estimate
    peak_kl: Estimate | None
    peak_gain: Estimate | None


@dataclass(frozen=True)
class SeedFits:
    """Over-optimisation curve fitted over several seeds.

    Attributes:
        fits: one fit per seed that has policies at two or more distances.
        left_out: number of seeds with fewer distances.
        over_seeds: means over the seeds' fits with t intervals. The KL of the maximum is a geometric mean with the
            interval of ln d*; it is None unless every seed has a maximum. Averaging α and β averages the curves.
        advantage: mean over seeds of `held_out_advantage`; None with fewer than two seeds.
    """

    fits: tuple[Fit, ...]
    left_out: int
    over_seeds: Summary
    advantage: Estimate | None

    def gain(self, d_N: ArrayLike) -> FloatArray:
        """Return the mean over seeds of their curves at (N,) distances."""
        return np.mean([fit.gain(d_N) for fit in self.fits], axis=0)


def fit_over_seeds(form: Form, d_N: ArrayLike, gain_N: ArrayLike, seed_N: ArrayLike) -> SeedFits:
    """Fit one curve per seed; the module docstring describes the intervals.

    Args:
        d_N, gain_N: (N,) distances √KL and gains over the reference of the same run.
        seed_N: (N,) seed of each point, of any hashable type.
    Raises:
        NumericError: no seed has policies at two distances.
    """
    d_N, gain_N = floats(d_N), floats(gain_N)
    seed_N = np.asarray(seed_N).ravel()
    seeds = list(dict.fromkeys(seed_N.tolist()))  # distinct, in order of first appearance
    points_of_seeds = [_usable_points(d_N[seed_N == seed], gain_N[seed_N == seed]) for seed in seeds]
    points_by_seed = [points for points in points_of_seeds if np.unique(points[0]).size >= 2]
    if not points_by_seed:
        raise NumericError(
            "no seed has policies at two or more distances from the reference; evaluate several checkpoints of a run"
        )
    fits = tuple(fit_curve(form, distances, gains) for distances, gains in points_by_seed)
    return SeedFits(
        fits=fits,
        left_out=len(seeds) - len(points_by_seed),
        over_seeds=_summarise_seeds(fits),
        advantage=held_out_advantage(form, points_by_seed),
    )


def held_out_advantage(form: Form, points_by_seed: Sequence[Points]) -> Estimate | None:
    """Return how much better a curve than its rival predicts the policies of a seed that neither was fitted to.

    Both curves are fitted to the points of all other seeds. The result is the log-likelihood of the seed's gains under
    the first, minus that under the second, in nats per policy, with a t interval over seeds; None with fewer than two.
    Fits of different seeds share points, so the interval is descriptive.
    """
    if len(points_by_seed) < 2:
        return None
    differences = []
    for held_out in points_by_seed:
        others = _joined([points for points in points_by_seed if points is not held_out])
        if np.unique(others[0]).size < 2:
            return None
        own, rival = (_log_likelihood(name, others, held_out) for name in (form, RIVAL[form]))
        differences.append(own - rival)
    return seed_mean(differences)


def _joined(points_by_seed: Sequence[Points]) -> Points:
    distances, gains = zip(*points_by_seed, strict=True)
    return np.concatenate(distances), np.concatenate(gains)


def _log_likelihood(form: Form, fitted_to: Points, held_out: Points) -> float:
    """Return the mean log-likelihood of `held_out` under a curve, with the residual variance of `fitted_to`."""
    curve = fit_curve(form, *fitted_to)
    d_N, gain_N = fitted_to
    degrees = max(1, d_N.size - 2)  # two parameters
    variance = max(float(np.square(gain_N - curve.gain(d_N)).sum()) / degrees, np.finfo(np.float64).tiny)
    held_out_d, held_out_gain = held_out
    squared_error = float(np.square(held_out_gain - curve.gain(held_out_d)).mean())
    return -0.5 * (math.log(2 * math.pi * variance) + squared_error / variance)


def _summarise_seeds(fits: Sequence[Fit]) -> Summary:
    peak_kl = peak_gain = None
    log_peaks = [fit.log_peak for fit in fits]
    if np.isfinite(log_peaks).all():
        log_d = seed_mean(log_peaks)
        # KL = d², so ln KL = 2·ln d.
        mean, low, high = (_exp(2 * value) for value in (log_d.mean, log_d.low, log_d.high))
        peak_kl = Estimate(mean, low, high, log_d.n, log_d.clusters)
        peak_gain = seed_mean([fit.peak_gain for fit in fits])
    return Summary(seed_mean([fit.alpha for fit in fits]), seed_mean([fit.beta for fit in fits]), peak_kl, peak_gain)


def _basis(form: Form, d_N: FloatArray) -> FloatArray:
    """Return the columns multiplied by α and β, (N, 2); 0·ln 0 is taken as 0."""
    # d·ln d tends to 0 at d = 0, so log(1) = 0 can replace log(0).
    log_d_N = np.log(np.where(d_N > 0, d_N, 1.0))
    loss_N = np.square(d_N) if form == "bon" else d_N * log_d_N
    return np.stack([d_N, -loss_N], axis=1)


def _usable_points(d_N: ArrayLike, gain_N: ArrayLike) -> Points:
    """Return (distances, gains) of the points that a fit uses: neither is NaN, and d > 0."""
    d_N, gain_N = floats(d_N), floats(gain_N)
    if d_N.shape != gain_N.shape:
        raise NumericError(
            f"a curve needs one gain per distance, but got {gain_N.size} gains for {d_N.size} distances; "
            "give arrays of equal length"
        )
    if (d_N < 0).any():
        raise NumericError(f"a distance √KL cannot be negative, but the minimum is {d_N.min():g}; pass √KL ≥ 0")
    usable = ~np.isnan(gain_N) & (d_N > 0)  # NaN > 0 is False, so this also drops NaN distances
    return d_N[usable], gain_N[usable]


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf  # math.exp raises OverflowError from about 709
