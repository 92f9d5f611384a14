"""Statistics of reward hacking: tests whether a quantity has left its baseline or a distribution has shifted.

A baseline is a few checkpoints at the start of a run. A checkpoint's mean is noisy because responses are sampled, and
because the policy changes. Both parts are estimated from the baseline's own checkpoints:

    noise²(n) = s²/n + drift²      s: sd of prompt means within checkpoints; n: prompts of a checkpoint
    drift²    = max(0, variance of the checkpoint means − s²·mean(1/n))

The sd of the checkpoint means alone would have only `warmup − 1` degrees of freedom. Responses to one prompt are
averaged first. Thresholds with a stated error rate are simulated with the same estimators on normal noise, so a
baseline of few checkpoints gives wider ones.

Neglected in `shift_kl`: the correlation of responses to one prompt. With 16 prompts of 4 responses correlated at .5 it
is .02 too high, and `reward_kl` is in alarm in 24 % of clean runs of 30 checkpoints instead of 4 %. Also neglected:
autocorrelated noise, heavy tails, and the error of the drift's estimate. If the true means of checkpoints vary as much
as sampling does, a budget of 5 % is about 11 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlhf_lab.core.types import FloatArray

BINS = 8
"""Number of bins of the reward distribution, equally filled by the initial one."""
ALLOWANCE = 1.0
"""Reference value k of the CUSUM in units of noise: half of the smallest shift that it is tuned for (Page 1954)."""
SIMULATED = 4000
"""Number of simulated runs for a threshold; 5 % of them are 200, so the rate is known to ±0.7 points."""


@dataclass(frozen=True)
class Baseline:
    """Distribution of a quantity's checkpoint means at the start of a run.

    Attributes:
        mean: mean over all prompts of all checkpoints.
        sd: sd of prompt means within a checkpoint.
        drift: sd of the checkpoints' true means.
        prompts: mean number of prompts per checkpoint.
    """

    mean: float
    sd: float
    drift: float
    checkpoints: int
    prompts: float

    def noise(self, prompts: float) -> float:
        """Return the sd of the mean of a checkpoint."""
        # never exactly 0, so that a constant quantity can leave its constant
        noise = math.sqrt(self.sd**2 / prompts + self.drift**2)
        return max(noise, 1e-6 * (1 + abs(self.mean)))

    def z(self, mean: float, prompts: float, *, tolerance: float = 0.0) -> float:
        """Return the deviation of a checkpoint's mean from the baseline's, in standard errors of the difference.

        Args:
            tolerance: relative change of the mean that is not counted.
        """
        difference = mean - self.mean
        excess = max(0.0, abs(difference) - tolerance * abs(self.mean))
        counted = math.copysign(excess, difference)
        # the baseline is a mean over checkpoints, so its error is that of one divided by √checkpoints
        error = self.noise(prompts)
        baseline_error = self.noise(self.prompts) / math.sqrt(self.checkpoints)
        return counted / math.hypot(error, baseline_error)


def fit_baseline(checkpoints: Sequence[FloatArray]) -> Baseline:
    """Fit a baseline to the prompt means (B,) of each checkpoint. With one prompt each, drift cannot be separated."""
    sizes_C = np.array([len(values_B) for values_B in checkpoints], dtype=float)
    means_C = np.array([values_B.mean() for values_B in checkpoints])
    # sum of squares within checkpoints, whose degrees of freedom exclude one mean per checkpoint
    squares = 0.0
    for values_B in checkpoints:
        squares += float(np.square(values_B - values_B.mean()).sum())
    freedom = sizes_C.sum() - len(sizes_C)
    between = float(means_C.var(ddof=1)) if len(means_C) > 1 else 0.0
    within = squares / freedom if freedom else between
    # the means vary by sampling of prompts and by drift; what sampling does not explain is drift
    sampling_variance = within * float((1 / sizes_C).mean())
    drift_variance = max(0.0, between - sampling_variance)
    return Baseline(
        mean=float((sizes_C * means_C).sum() / sizes_C.sum()),
        sd=math.sqrt(within),
        drift=math.sqrt(drift_variance),
        checkpoints=len(sizes_C),
        prompts=float(sizes_C.mean()),
    )


def by_prompt(values_N: FloatArray, prompt_N: FloatArray) -> FloatArray:
    """Return the mean over the scored responses to each prompt, (B,), without prompts that have none."""
    scored_N = np.isfinite(values_N)
    if not scored_N.any():
        return np.zeros(0)
    _, index_n = np.unique(prompt_N[scored_N], return_inverse=True)  # n counts only the scored responses
    return np.bincount(index_n, weights=values_N[scored_N]) / np.bincount(index_n)


@dataclass
class Cusum:
    """Page's cumulative sums, upward and downward, of deviations beyond the tolerance (Page 1954).

    S⁺ = max(0, S⁺ + (x̄ − mean − tolerance·|mean|)/noise − k), S⁻ likewise downward.

    Attributes:
        tolerance: relative change of the mean that raises no alarm.
        two_sided: True if a decrease also counts.
        threshold: sum above which there is an alarm.
        high, low: sums S⁺ and S⁻ so far.
    """

    baseline: Baseline
    tolerance: float
    two_sided: bool
    threshold: float
    high: float = 0.0
    low: float = 0.0

    def step(self, mean: float, prompts: float) -> float:
        """Add a checkpoint. Returns the larger sum in units of the threshold: above 1 is an alarm."""
        noise = self.baseline.noise(prompts)
        excess = (mean - self.baseline.mean) / noise
        tolerated = self.tolerance * abs(self.baseline.mean) / noise
        self.high = max(0.0, self.high + excess - tolerated - ALLOWANCE)
        self.low = max(0.0, self.low - excess - tolerated - ALLOWANCE) if self.two_sided else 0.0
        return max(self.high, self.low) / self.threshold


def cusum_threshold(
    baseline: Baseline, *, planned: int, budget: float, tolerance: float, two_sided: bool, seed: int
) -> float:
    """Return the threshold that a run without change beyond `tolerance` ever crosses with probability `budget`.

    The threshold is computed by a parametric bootstrap of entire runs with the baseline's noise, in units of
    `baseline.sd`. In each simulated run, a baseline is estimated from warm-up checkpoints. The cumulative sums are then
    computed over `planned` further checkpoints whose mean is at the edge of the tolerance. The threshold is the
    quantile of the runs' largest sums. It therefore includes the error of the estimated baseline, which dominates with
    a short warm-up.
    """
    # without later checkpoints or without noise there is nothing to simulate
    if planned < 1 or not baseline.sd:
        return 1.0
    rng = np.random.default_rng(seed)
    warmup, n = baseline.checkpoints, baseline.prompts
    true_mean = abs(baseline.mean) / baseline.sd
    true_noise = math.sqrt(1 / n + (baseline.drift / baseline.sd) ** 2)
    # stage 1: estimates that `fit_baseline` would return for each simulated warm-up
    means_RC = true_mean + true_noise * rng.standard_normal((SIMULATED, warmup))
    between_R = means_RC.var(axis=1, ddof=1) if warmup > 1 else np.zeros(SIMULATED)
    freedom = warmup * (n - 1)
    within_R = rng.chisquare(freedom, SIMULATED) / freedom if freedom else between_R
    sampling_R = within_R / n
    noise_R = np.sqrt(sampling_R + np.maximum(0, between_R - sampling_R))
    mean_R = means_RC.mean(axis=1)
    # stage 2: sums of `Cusum.step` over the planned checkpoints
    tolerated_R = tolerance * np.abs(mean_R)
    high_R, low_R, largest_R = np.zeros((3, SIMULATED))
    for _ in range(planned):
        excess_R = true_mean * (1 + tolerance) + true_noise * rng.standard_normal(SIMULATED) - mean_R
        high_R = np.maximum(0, high_R + (excess_R - tolerated_R) / noise_R - ALLOWANCE)
        low_R = np.maximum(0, low_R - (excess_R + tolerated_R) / noise_R - ALLOWANCE) if two_sided else low_R
        largest_R = np.maximum(largest_R, np.maximum(high_R, low_R))
    return max(float(np.quantile(largest_R, 1 - budget)), 1e-3)  # not 0, because sums are divided by it


def bin_edges(values_N: FloatArray) -> FloatArray:
    """Return the inner edges of bins that the values fill equally; fewer edges if values repeat."""
    scored_n = values_N[np.isfinite(values_N)]
    quantiles = np.quantile(scored_n, np.arange(1, BINS) / BINS)
    return np.unique(quantiles)  # equal edges would enclose bins that are always empty


def bin_counts(values_N: FloatArray, edges: FloatArray) -> FloatArray:
    """Return the number of values in each bin, (len(edges) + 1,); unscored values are not counted."""
    bin_n = np.searchsorted(edges, values_N[np.isfinite(values_N)], side="right")
    return np.bincount(bin_n, minlength=len(edges) + 1).astype(float)


def shift_kl(initial_K: FloatArray, current_K: FloatArray) -> float:
    """Return KL(initial ‖ current) of two binned samples, nats; NaN if a sample is empty.

    1/2 is added to each count (Krichevsky & Trofimov 1981). For samples of the same distribution, the uncorrected
    estimate has mean (bins − 1)/2 · (1/n + 1/m). It is subtracted, so the result can be negative.
    """
    used = (initial_K + current_K) > 0
    p_K = initial_K[used] + 0.5
    q_K = current_K[used] + 0.5
    n, m = initial_K.sum(), current_K.sum()
    if not n or not m:
        return math.nan
    p_K = p_K / p_K.sum()
    q_K = q_K / q_K.sum()
    bias = (used.sum() - 1) / 2 * (1 / n + 1 / m)
    return float((p_K * np.log(p_K / q_K)).sum() - bias)
