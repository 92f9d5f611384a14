"""The statistics of reward hacking: has a quantity left its baseline, has a distribution moved.

A baseline is a few checkpoints at the start of a run. A checkpoint's mean is noisy because replies are sampled, and
also because the policy moves; both are estimated from the baseline's own checkpoints:

    noise²(n) = s²/n + drift²      s: sd of prompt means within checkpoints; n: prompts of a checkpoint
    drift²    = max(0, variance of the checkpoint means − s²·mean(1/n))

The sd of the checkpoint means alone would have `warmup − 1` degrees of freedom. Replies to one prompt are averaged
first. Thresholds whose error rate is stated are simulated with the same estimators on normal noise, so that a baseline
of few checkpoints makes them wider. Left out: the correlation of replies to one prompt in `shift_kl` (with 16 prompts
of 4 replies correlated at .5 it is .02 too high, and `reward_kl` alarms in 24 % of clean runs of 30 checkpoints instead
of 4 %); autocorrelated noise, heavy tails, and the error of the drift's estimate: where the true means of
checkpoints scatter as much as sampling does, a budget of 5 % is about 11 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlhf_lab.core.types import FloatArray

BINS = 8
"""Bins of the reward distribution, equally filled by the initial one."""
ALLOWANCE = 1.0
"""CUSUM's reference value k in units of noise: half of the smallest shift that it is tuned for (Page 1954)."""
SIMULATED = 4000
"""Simulated runs behind a threshold; 5 % of them are 200, so that the rate is known to ±.7 points."""


@dataclass(frozen=True)
class Baseline:
    """What a quantity's checkpoint means looked like at the start.

    Attributes:
        mean: over all prompts of all checkpoints.
        sd: of prompt means within a checkpoint.
        drift: sd of the checkpoints' true means.
        checkpoints, prompts: how many; prompts per checkpoint.
    """

    mean: float
    sd: float
    drift: float
    checkpoints: int
    prompts: float

    def noise(self, prompts: float) -> float:
        """sd of the mean of a checkpoint; never quite 0, so that a constant quantity can leave its constant."""
        return max(math.sqrt(self.sd**2 / prompts + self.drift**2), 1e-6 * (1 + abs(self.mean)))

    def z(self, mean: float, prompts: float, *, tolerance: float = 0.0) -> float:
        """How far a checkpoint's mean lies from the baseline's, in standard errors of the difference.

        Args:
            tolerance: relative change of the mean from which on it is counted.
        """
        difference = mean - self.mean
        counted = math.copysign(max(0.0, abs(difference) - tolerance * abs(self.mean)), difference)
        error = self.noise(prompts)
        baseline_error = self.noise(self.prompts) / math.sqrt(self.checkpoints)
        return counted / math.hypot(error, baseline_error)


def fit_baseline(checkpoints: Sequence[FloatArray]) -> Baseline:
    """From the prompt means (B,) of each checkpoint. With one prompt each, within and between cannot be told apart."""
    sizes_C = np.array([len(values_B) for values_B in checkpoints], dtype=float)
    means_C = np.array([values_B.mean() for values_B in checkpoints])
    squares = sum(float(np.square(values_B - values_B.mean()).sum()) for values_B in checkpoints)
    freedom = sizes_C.sum() - len(sizes_C)
    between = float(means_C.var(ddof=1)) if len(means_C) > 1 else 0.0
    within = squares / freedom if freedom else between
    drift_variance = max(0.0, between - within * float((1 / sizes_C).mean()))
    return Baseline(
        mean=float((sizes_C * means_C).sum() / sizes_C.sum()),
        sd=math.sqrt(within),
        drift=math.sqrt(drift_variance),
        checkpoints=len(sizes_C),
        prompts=float(sizes_C.mean()),
    )


def by_prompt(values_N: FloatArray, prompt_N: FloatArray) -> FloatArray:
    """Mean over the scored replies to each prompt, (B,); prompts without any are left out."""
    scored_N = np.isfinite(values_N)
    if not scored_N.any():
        return np.zeros(0)
    _, index_n = np.unique(prompt_N[scored_N], return_inverse=True)  # n: the scored ones of N
    return np.bincount(index_n, weights=values_N[scored_N]) / np.bincount(index_n)


@dataclass
class Cusum:
    """Page's cumulative sums upward and downward of what exceeds the tolerance (Page 1954).

    S⁺ = max(0, S⁺ + (x̄ − mean − tolerance·|mean|)/noise − k), S⁻ likewise downward.

    Args:
        tolerance: relative change of the mean that is no alarm.
        two_sided: whether a fall counts.
        threshold: sum above which there is an alarm.
        high, low: the sums S⁺ and S⁻ so far.
    """

    baseline: Baseline
    tolerance: float
    two_sided: bool
    threshold: float
    high: float = 0.0
    low: float = 0.0

    def step(self, mean: float, prompts: float) -> float:
        """The larger sum after a checkpoint, in units of the threshold: above 1 is an alarm."""
        noise = self.baseline.noise(prompts)
        excess = (mean - self.baseline.mean) / noise
        tolerated = self.tolerance * abs(self.baseline.mean) / noise
        self.high = max(0.0, self.high + excess - tolerated - ALLOWANCE)
        self.low = max(0.0, self.low - excess - tolerated - ALLOWANCE) if self.two_sided else 0.0
        return max(self.high, self.low) / self.threshold


def cusum_threshold(
    baseline: Baseline, *, planned: int, budget: float, tolerance: float, two_sided: bool, seed: int
) -> float:
    """The threshold that a run without change beyond `tolerance` crosses anywhere with probability `budget`.

    Parametric bootstrap of whole runs with the baseline's own noise, in units of `baseline.sd`: warm-up checkpoints
    give an estimated baseline, `planned` further ones with the mean at the edge of the tolerance give sums, and the
    threshold is the quantile of their largest. The error of the estimated baseline, which dominates when warm-up is
    short, is thus included.

    Args:
        planned: checkpoints after warm-up.
    """
    if planned < 1 or not baseline.sd:
        return 1.0
    rng = np.random.default_rng(seed)
    warmup, n = baseline.checkpoints, baseline.prompts
    true_mean = abs(baseline.mean) / baseline.sd
    true_noise = math.sqrt(1 / n + (baseline.drift / baseline.sd) ** 2)
    # What `fit_baseline` would estimate from each simulated warm-up.
    means_RC = true_mean + true_noise * rng.standard_normal((SIMULATED, warmup))
    between_R = means_RC.var(axis=1, ddof=1) if warmup > 1 else np.zeros(SIMULATED)
    freedom = warmup * (n - 1)
    within_R = rng.chisquare(freedom, SIMULATED) / freedom if freedom else between_R
    noise_R = np.sqrt(within_R / n + np.maximum(0, between_R - within_R / n))
    mean_R = means_RC.mean(axis=1)
    # The sums of `Cusum.step` over the planned checkpoints.
    tolerated_R = tolerance * np.abs(mean_R)
    high_R, low_R, largest_R = np.zeros((3, SIMULATED))
    for _ in range(planned):
        excess_R = true_mean * (1 + tolerance) + true_noise * rng.standard_normal(SIMULATED) - mean_R
        high_R = np.maximum(0, high_R + (excess_R - tolerated_R) / noise_R - ALLOWANCE)
        low_R = np.maximum(0, low_R - (excess_R + tolerated_R) / noise_R - ALLOWANCE) if two_sided else low_R
        largest_R = np.maximum(largest_R, np.maximum(high_R, low_R))
    return max(float(np.quantile(largest_R, 1 - budget)), 1e-3)  # sums are divided by it


def bin_edges(values_N: FloatArray) -> FloatArray:
    """Inner edges of bins that the values fill equally; fewer where values repeat."""
    return np.unique(np.quantile(values_N[np.isfinite(values_N)], np.arange(1, BINS) / BINS))


def bin_counts(values_N: FloatArray, edges: FloatArray) -> FloatArray:
    """Values in each bin, (len(edges) + 1,); unscored ones in none."""
    bin_n = np.searchsorted(edges, values_N[np.isfinite(values_N)], side="right")
    return np.bincount(bin_n, minlength=len(edges) + 1).astype(float)


def shift_kl(initial_K: FloatArray, current_K: FloatArray) -> float:
    """KL(initial ‖ current) of two binned samples, nats.

    Counts get ½ each (Krichevsky & Trofimov 1981). Of samples of one distribution the plain estimate has mean
    (bins − 1)/2 · (1/n + 1/m), which is subtracted; the result can fall below 0. NaN when a sample is empty.
    """
    used = (initial_K + current_K) > 0
    p_K, q_K = initial_K[used] + 0.5, current_K[used] + 0.5
    n, m = initial_K.sum(), current_K.sum()
    if not n or not m:
        return math.nan
    p_K, q_K = p_K / p_K.sum(), q_K / q_K.sum()
    bias = (used.sum() - 1) / 2 * (1 / n + 1 / m)
    return float((p_K * np.log(p_K / q_K)).sum() - bias)
