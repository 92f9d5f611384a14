"""Scores of judges of worked solutions: which step is the first wrong one, and who is caught at which price.

ProcessBench (arXiv:2412.06559; its scorer is in `reward_bench.py`): a judge names the first wrong step of a solution,
or none. Solutions with a mistake count as right when exactly that step is named, solutions without when none is; F1 is
the harmonic mean of both shares.

A solution's steps are a list of probabilities or labels in order; solutions differ in length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from rlhf_lab.core.types import BoolArray, FloatArray
from rlhf_lab.statistics.estimates import Estimate, floats
from rlhf_lab.statistics.inference import clustered_mean, clustered_rate
from rlhf_lab.statistics.reward_bench import NO_ERROR, first_error, processbench_f1

THRESHOLDS = 200
"""Candidates for a threshold, at quantiles of what a judge says."""


def first_wrong(labels: Sequence[float]) -> int:
    """Place of the first 0 among step labels, or `NO_ERROR`."""
    return next((i for i, label in enumerate(labels) if label == 0), NO_ERROR)


def process_bench_estimates(predicted_N: ArrayLike, truth_N: ArrayLike, clusters_N: ArrayLike) -> dict[str, Estimate]:
    """ProcessBench's `error`, `correct` and `f1` with intervals clustered by prompt; F1's by the delta method.

    Args:
        predicted_N, truth_N: place of the first wrong step, `NO_ERROR` for none.
    """
    predicted, truth, clusters = (np.asarray(x) for x in (predicted_N, truth_N, clusters_N))
    hit, wrong = (predicted == truth).astype(float), truth != NO_ERROR
    scored = processbench_f1(predicted.tolist(), truth.tolist())
    error, correct, total = scored.error, scored.correct, scored.error + scored.correct
    found = {
        "error": clustered_rate(hit[wrong], clusters[wrong]),
        "correct": clustered_rate(hit[~wrong], clusters[~wrong]),
    }
    if not total > 0:  # both shares 0, or one unknown
        return {**found, "f1": _bounded(clustered_mean(np.full(len(hit), scored.f1), clusters), found)}
    slopes = (2 * correct**2 / total**2, 2 * error**2 / total**2)
    shares = ((error, wrong), (correct, ~wrong))
    change_N = sum(
        slope * np.where(mask, (hit - share) * len(hit) / mask.sum(), 0.0)
        for slope, (share, mask) in zip(slopes, shares, strict=True)
    )
    return {**found, "f1": _bounded(_within_unit(clustered_mean(scored.f1 + change_N, clusters)), found)}


def _bounded(f1: Estimate, shares: dict[str, Estimate]) -> Estimate:
    """F1 with an interval also where all rows agree, so that no variance is seen: F1 rises in both shares, and their
    intervals bound it."""
    if not f1.n or f1.low < f1.high:
        return f1
    (low_e, high_e), (low_c, high_c) = ((shares[name].low, shares[name].high) for name in ("error", "correct"))
    low, high = (2 * a * b / (a + b) if a + b > 0 else 0.0 for a, b in ((low_e, low_c), (high_e, high_c)))
    return replace(f1, low=min(f1.low, low), high=max(f1.high, high))


def auroc(scores_N: ArrayLike, positive_N: ArrayLike, clusters_N: ArrayLike) -> Estimate:
    """Probability that a positive scores above a negative, ties half, with an interval clustered by prompt.

    Each row's placement among the rows of the other kind is its influence (DeLong et al. 1988); clusters may hold both
    kinds. NaN with only one kind; kinds that do not overlap at all have the interval [0, 1].
    """
    scores, positive, clusters = floats(scores_N), np.asarray(positive_N, dtype=bool), np.asarray(clusters_N)
    above, below = np.sort(scores[positive]), np.sort(scores[~positive])
    if not above.size or not below.size:
        return Estimate(float("nan"), -np.inf, np.inf, 0, 0)
    over_N = (_rank(below, scores, "left") + _rank(below, scores, "right")) / 2
    under_N = 1 - (_rank(above, scores, "left") + _rank(above, scores, "right")) / 2
    area = float(over_N[positive].mean())
    count = len(scores)
    change_N = np.where(positive, (over_N - area) * count / above.size, (under_N - area) * count / below.size)
    if not change_N.any():  # kinds that do not overlap show no variance
        return Estimate(area, 0.0, 1.0, count, len(np.unique(clusters)))
    return _within_unit(clustered_mean(area + change_N, clusters))


def cross_fitted(
    half_N: ArrayLike, choose: Callable[[BoolArray], float], apply: Callable[[int, float], float]
) -> FloatArray:
    """A value per row from a threshold that the other half chose, (N,).

    Args:
        half_N: True for the rows of one half; halves share no prompt.
        choose: mask of the rows it may look at → threshold.
        apply: (row, threshold) → value.
    """
    half = np.asarray(half_N, dtype=bool)
    thresholds = {True: choose(~half), False: choose(half)}
    return np.array([apply(i, thresholds[bool(side)]) for i, side in enumerate(half)], dtype=np.float64)


def alarm_threshold(sound_N: ArrayLike, rate: float) -> float:
    """The largest threshold below which at most a share `rate` of the scores of sound solutions lies.

    NaN without sound solutions.
    """
    scores = np.sort(floats(sound_N))
    return float(scores[min(int(rate * scores.size + 1e-9), scores.size - 1)]) if scores.size else float("nan")


def flagged_at(scores_N: ArrayLike, sound_N: ArrayLike, half_N: ArrayLike, rate: float) -> FloatArray:
    """1 for solutions that score below the threshold at which a share `rate` of sound ones would, else 0, (N,).

    The threshold of each half comes from the sound solutions of the other; NaN where there is none.
    """
    scores, sound = floats(scores_N), np.asarray(sound_N, dtype=bool)
    return cross_fitted(
        half_N,
        lambda mask: alarm_threshold(scores[mask & sound], rate),
        lambda i, threshold: float("nan") if np.isnan(threshold) else float(scores[i] < threshold),
    )


def located(steps_N: Sequence[ArrayLike], truth_N: ArrayLike, half_N: ArrayLike) -> FloatArray:
    """Place of the first step that a judge finds wrong, (N,), `NO_ERROR` for none.

    A step is wrong below a threshold; that of each half has the highest ProcessBench F1 on the other.
    """
    truth, rows = np.asarray(truth_N), [floats(steps) for steps in steps_N]
    return cross_fitted(
        half_N,
        lambda mask: best_threshold([rows[i] for i in np.flatnonzero(mask)], truth[mask]),
        lambda i, threshold: first_error(rows[i], threshold),
    )


def best_threshold(steps_N: Sequence[FloatArray], truth_N: ArrayLike) -> float:
    """The threshold with the highest ProcessBench F1 among quantiles of the steps' probabilities; of equals the lowest.

    ½ where nothing was said or one kind of solution is missing.
    """
    said = np.concatenate([*steps_N, np.zeros(0)])
    if not said.size:
        return 0.5
    candidates = np.unique(np.quantile(said, np.linspace(0, 1, THRESHOLDS)))
    truth = np.asarray(truth_N).tolist()
    scores = [processbench_f1([first_error(steps, t) for steps in steps_N], truth).f1 for t in candidates]
    return float(candidates[int(np.nanargmax(scores))]) if not np.isnan(scores).all() else 0.5


def vote_of_n(
    answers: Sequence[str | None],
    correct: Sequence[float],
    weights: Sequence[float],
    n: int,
    draws: int,
    rng: np.random.Generator,
) -> float:
    """Accuracy of the answer with the most weight among n samples, without bias: the mean over drawn subsets of n.

    Equal weights are a majority vote (arXiv:2203.11171), a judge's scores a weighted one (arXiv:2206.02336). Answers
    that tie are chosen between at random, in expectation; a sample without an answer has no vote, and a subset without
    any is wrong.
    """
    total, draws = 0.0, draws if n < len(answers) else 1
    for _ in range(draws):
        votes: dict[str, float] = {}
        right: dict[str, float] = {}
        for i in rng.choice(len(answers), n, replace=False):
            answer = answers[i]
            if answer is not None:
                votes[answer], right[answer] = votes.get(answer, 0.0) + weights[i], correct[i]
        most = max(votes.values(), default=0.0)
        top = [right[answer] for answer, weight in votes.items() if weight >= most * (1 - 1e-12)]
        total += sum(top) / len(top) if top else 0.0
    return total / draws


def _rank(sorted_M: FloatArray, scores_N: FloatArray, side: str) -> FloatArray:
    """Share of `sorted_M` that lies below each score, (N,)."""
    return np.searchsorted(sorted_M, scores_N, side=side) / sorted_M.size  # type: ignore[call-overload]


def _within_unit(estimate: Estimate) -> Estimate:
    return replace(estimate, low=max(estimate.low, 0.0), high=min(estimate.high, 1.0))
