"""Over-optimisation: how far a policy can follow a proxy before the truth turns.

Gao, Schulman & Hilton (arXiv:2210.10760, §3.1): with d = √KL(π ‖ π_ref), KL in nats per reply, the gold reward gained
over the reference follows

    R_bon(d) = d·(α − β·d)         best of n samples        greatest at d* = α / 2β
    R_RL(d)  = d·(α − β·ln d)      a trained policy         greatest at d* = exp(α/β − 1)

Both are linear in (α, β) and 0 at d = 0, so ordinary least squares without intercept fits them. The reference itself
(d = 0) lies on every such curve; it carries no information and is left out.

Primary interval: the curve is fitted seed by seed and a Student t interval goes over the seeds' α, β and ln d*.
Policies along one run share its noise, so a seed is the independent unit; with 3 seeds t has 2 degrees of freedom and
the interval is as wide as that knowledge. Second: one fit through all points, with percentiles of a bootstrap over
whole seeds. It is defined when some seeds do not turn, and too narrow with few seeds: 3 seeds have 10 distinct
resamples.
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
from rlhf_lab.statistics.estimates import LEVEL, Estimate, floats
from rlhf_lab.statistics.inference import seed_mean

Form = Literal["bon", "rl"]
Place = Literal["inside", "before", "beyond", "never"]
Points = tuple[FloatArray, FloatArray]
"""Distances √KL and gold gains of policies, each (N,)."""


@dataclass(frozen=True)
class Fit:
    """One fitted curve.

    Attributes:
        alpha, beta: gain per √nat, and what of it is lost per √nat (bon) or per e-fold (rl).
        residual_sd: √(SSR / (n − 2)), in units of the gain; NaN with two points.
        r_squared: share of the gains' variance about their mean that the curve explains; negative when the mean alone
            does better, NaN when all gains agree.
        n: points with d > 0.
        d_min, d_max: observed range, √nats.
    """

    form: Form
    alpha: float
    beta: float
    residual_sd: float
    r_squared: float
    n: int
    d_min: float
    d_max: float

    @property
    def log_peak(self) -> float:
        """ln d*; inf when the curve never turns (β ≤ 0), −inf when it falls from the start (bon with α ≤ 0)."""
        return _log_peak(self.form, np.array(self.alpha), np.array(self.beta)).item()

    @property
    def peak_d(self) -> float:
        return _exp(self.log_peak)

    @property
    def peak_kl(self) -> float:
        """KL at the peak, nats; inf when there is none."""
        return _exp(2 * self.log_peak)

    @property
    def peak_gain(self) -> float:
        """Gain at the peak: α²/4β (bon), β·d* (rl); inf when the curve never turns."""
        return _peak_gain(self.form, np.array(self.alpha), np.array(self.beta)).item()

    @property
    def place(self) -> Place:
        """Where the peak lies among the observed policies; only `inside` is seen, the others are extrapolated."""
        if self.beta <= 0:
            return "never"
        if self.peak_d > self.d_max:
            return "beyond"
        return "inside" if self.peak_d >= self.d_min else "before"

    @property
    def reason(self) -> str | None:
        """Why the peak is not an observation; None when it is."""
        return {
            "never": "no turn in the data: β ≤ 0",
            "beyond": f"extrapolated: the peak lies beyond the farthest policy, KL {self.d_max**2:.3g}",
            "before": f"extrapolated: the peak lies before the first policy, KL {self.d_min**2:.3g}",
            "inside": None,
        }[self.place]

    def gain(self, d_N: ArrayLike) -> FloatArray:
        """The curve at (N,) distances ≥ 0, √nats."""
        return _basis(self.form, floats(d_N)) @ np.array([self.alpha, self.beta])


def fit_bon(d_N: ArrayLike, gain_N: ArrayLike) -> Fit:
    """Fit d·(α − β·d) to (N,) gold gains of best-of-n policies at distances d = √KL."""
    return fit_curve("bon", d_N, gain_N)


def fit_rl(d_N: ArrayLike, gain_N: ArrayLike) -> Fit:
    """Fit d·(α − β·ln d) to (N,) gold gains of trained policies at distances d = √KL."""
    return fit_curve("rl", d_N, gain_N)


def fit_curve(form: Form, d_N: ArrayLike, gain_N: ArrayLike) -> Fit:
    """Least squares through the origin. Points at d = 0 or with a NaN are left out.

    Raises NumericError with fewer than two distinct distances: two parameters need two points.
    """
    d_N, gain_N = _usable_points(d_N, gain_N)
    if np.unique(d_N).size < 2:
        raise NumericError(f"a curve needs policies at two distances from the reference, not {np.unique(d_N).size}")
    basis_N2 = _basis(form, d_N)
    (alpha, beta), *_ = np.linalg.lstsq(basis_N2, gain_N, rcond=None)
    residual_squares = float(np.square(gain_N - basis_N2 @ [alpha, beta]).sum())
    total_squares = float(np.square(gain_N - gain_N.mean()).sum())
    return Fit(
        form=form,
        alpha=float(alpha),
        beta=float(beta),
        residual_sd=math.sqrt(residual_squares / (d_N.size - 2)) if d_N.size > 2 else math.nan,
        r_squared=1 - residual_squares / total_squares if total_squares > 0 else math.nan,
        n=int(d_N.size),
        d_min=float(d_N.min()),
        d_max=float(d_N.max()),
    )


@dataclass(frozen=True)
class Summary:
    """α, β and the peak with their intervals. A peak is None when it is not defined; see `SeedFits`."""

    alpha: Estimate
    beta: Estimate
    peak_kl: Estimate | None
    peak_gain: Estimate | None


@dataclass(frozen=True)
class SeedFits:
    """One curve over several seeds.

    Attributes:
        fits: one per seed that has policies at two distances or more.
        left_out: seeds that have not.
        over_seeds: means over the seeds' fits with t intervals; the peak's KL is a geometric mean, its interval that
            of ln d*. Its peak is None unless every seed turns. Averaging α and β averages the curves themselves.
        pooled: one fit through all points of all seeds.
        bootstrap: the pooled fit with percentiles over resampled seeds; a bound is inf when resamples do not turn.
    """

    fits: tuple[Fit, ...]
    left_out: int
    over_seeds: Summary
    pooled: Fit
    bootstrap: Summary

    def gain(self, d_N: ArrayLike) -> FloatArray:
        """The mean over seeds of their curves at (N,) distances."""
        return np.mean([fit.gain(d_N) for fit in self.fits], axis=0)


def fit_over_seeds(
    form: Form, d_N: ArrayLike, gain_N: ArrayLike, seed_N: ArrayLike, *, draws: int = 2000, level: float = LEVEL
) -> SeedFits:
    """Fit a curve per seed and one through all; see the module's first lines for the two intervals.

    Args:
        d_N, gain_N: (N,) distances √KL and gains over the reference of the same run.
        seed_N: (N,) seed of each point, any hashable kind.
        draws: bootstrap resamples.
    """
    d_N, gain_N = floats(d_N), floats(gain_N)
    seed_N = np.asarray(seed_N).ravel()
    seeds = list(dict.fromkeys(seed_N.tolist()))  # distinct, in order of first appearance
    points_by_seed: list[Points] = []
    for seed in seeds:
        points = _usable_points(d_N[seed_N == seed], gain_N[seed_N == seed])
        distances, _ = points
        if np.unique(distances).size >= 2:
            points_by_seed.append(points)
    if not points_by_seed:
        raise NumericError("no seed has policies at two distances from the reference; evaluate along training")
    fits = tuple(fit_curve(form, distances, gains) for distances, gains in points_by_seed)
    all_distances = np.concatenate([distances for distances, _ in points_by_seed])
    all_gains = np.concatenate([gains for _, gains in points_by_seed])
    pooled = fit_curve(form, all_distances, all_gains)
    return SeedFits(
        fits=fits,
        left_out=len(seeds) - len(points_by_seed),
        over_seeds=_summarise_seeds(fits, level),
        pooled=pooled,
        bootstrap=_bootstrap_seeds(pooled, points_by_seed, draws, level),
    )


def _summarise_seeds(fits: Sequence[Fit], level: float) -> Summary:
    """Means over the seeds' fits with t intervals."""
    peak_kl = peak_gain = None
    log_peaks = [fit.log_peak for fit in fits]
    if np.isfinite(log_peaks).all():
        log_d = seed_mean(log_peaks, level=level)
        mean, low, high = (_exp(2 * value) for value in (log_d.mean, log_d.low, log_d.high))  # KL = d²
        peak_kl = Estimate(mean, low, high, log_d.n, log_d.clusters, level)
        peak_gain = seed_mean([fit.peak_gain for fit in fits], level=level)
    alpha = seed_mean([fit.alpha for fit in fits], level=level)
    beta = seed_mean([fit.beta for fit in fits], level=level)
    return Summary(alpha, beta, peak_kl, peak_gain)


def _bootstrap_seeds(pooled: Fit, points_by_seed: Sequence[Points], draws: int, level: float) -> Summary:
    """Percentiles of the pooled fit over resampled seeds. The pooled value is always inside its own interval.

    Least squares needs XᵀX and Xᵀy alone, which are sums over seeds: a draw adds up those of the seeds in it.
    """
    seeds = len(points_by_seed)
    bases = [_basis(pooled.form, distances) for distances, _ in points_by_seed]
    xtx_S22 = np.stack([basis.T @ basis for basis in bases])
    xty_S2 = np.stack([basis.T @ gains for basis, (_, gains) in zip(bases, points_by_seed, strict=True)])
    times_drawn_DS = np.random.default_rng(0).multinomial(seeds, np.full(seeds, 1 / seeds), size=draws)
    xtx_D22 = np.einsum("ds,sij->dij", times_drawn_DS, xtx_S22)
    xty_D2 = np.einsum("ds,si->di", times_drawn_DS, xty_S2)
    alpha_D, beta_D = np.linalg.solve(xtx_D22, xty_D2[..., None])[..., 0].T
    with np.errstate(over="ignore"):
        peak_kl_D = np.exp(2 * _log_peak(pooled.form, alpha_D, beta_D))
    peak_gain_D = _peak_gain(pooled.form, alpha_D, beta_D)

    def estimate(value: float, drawn_D: FloatArray) -> Estimate:
        if seeds < 2:
            return Estimate(value, -math.inf, math.inf, pooled.n, seeds, level)
        tails = ((1 - level) / 2, (1 + level) / 2)
        low, high = np.quantile(drawn_D, tails, method="inverted_cdf")  # never between a number and inf
        return Estimate(value, min(float(low), value), max(float(high), value), pooled.n, seeds, level)

    turns = math.isfinite(pooled.peak_kl)
    return Summary(
        alpha=estimate(pooled.alpha, alpha_D),
        beta=estimate(pooled.beta, beta_D),
        peak_kl=estimate(pooled.peak_kl, peak_kl_D) if turns else None,
        peak_gain=estimate(pooled.peak_gain, peak_gain_D) if turns else None,
    )


def _basis(form: Form, d_N: FloatArray) -> FloatArray:
    """Columns of (α, β), (N, 2); 0·ln 0 is 0."""
    log_d_N = np.log(np.where(d_N > 0, d_N, 1.0))
    loss_N = np.square(d_N) if form == "bon" else d_N * log_d_N
    return np.stack([d_N, -loss_N], axis=1)


def _usable_points(d_N: ArrayLike, gain_N: ArrayLike) -> Points:
    """(distances, gains) of the points that a fit uses: neither is NaN, and d > 0."""
    d_N, gain_N = floats(d_N), floats(gain_N)
    if d_N.shape != gain_N.shape:
        raise NumericError(f"a curve needs a gain for each distance, not {gain_N.size} for {d_N.size}")
    if (d_N < 0).any():
        raise NumericError(f"a distance √KL cannot be negative: {d_N.min():g}")
    usable = ~np.isnan(gain_N) & (d_N > 0)  # a NaN distance is not above 0
    return d_N[usable], gain_N[usable]


def _log_peak(form: Form, alpha_N: FloatArray, beta_N: FloatArray) -> FloatArray:
    """ln d* elementwise; inf where β ≤ 0, −inf where a bon curve falls from the start."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = alpha_N / beta_N
        log_d = np.log(np.maximum(ratio, 0) / 2) if form == "bon" else ratio - 1
    return np.where(beta_N > 0, log_d, np.inf)


def _peak_gain(form: Form, alpha_N: FloatArray, beta_N: FloatArray) -> FloatArray:
    """Gain at d* elementwise; inf where the curve never turns."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        d_N = np.exp(_log_peak(form, alpha_N, beta_N))
        top = np.maximum(alpha_N, 0) * d_N / 2 if form == "bon" else beta_N * d_N
    return np.where(beta_N > 0, top, np.inf)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf  # math.exp raises OverflowError from about 709
