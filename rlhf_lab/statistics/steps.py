"""Scores of judges of worked solutions: is the first wrong step named, and how many false alarms does that take.

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
"""Candidates for a threshold, at quantiles of a judge's probabilities."""


def first_wrong(labels: Sequence[float]) -> int:
    """Place of the first 0 among step labels, or `NO_ERROR`."""
    return next((i for i, label in enumerate(labels) if label == 0), NO_ERROR)


def process_bench_estimates(predicted_N: ArrayLike, truth_N: ArrayLike, clusters_N: ArrayLike) -> dict[str, Estimate]:
    """ProcessBench's `error`, `correct` and `f1` with intervals clustered by prompt; F1's by the delta method.

    Args:
        predicted_N, truth_N: place of the first wrong step, `NO_ERROR` for none.
    """
    predicted, truth, clusters = np.asarray(predicted_N), np.asarray(truth_N), np.asarray(clusters_N)
    rows = len(truth)
    hit = (predicted == truth).astype(float)
    has_error = truth != NO_ERROR
    scores = processbench_f1(predicted.tolist(), truth.tolist())
    error = clustered_rate(hit[has_error], clusters[has_error])
    correct = clustered_rate(hit[~has_error], clusters[~has_error])
    total = scores.error + scores.correct
    if total > 0:
        # Delta method: a row moves F1 by its influence on the share of its kind, times F1's slope in that share.
        error_slope = 2 * scores.correct**2 / total**2
        correct_slope = 2 * scores.error**2 / total**2
        error_influence = np.where(has_error, (hit - scores.error) * rows / has_error.sum(), 0.0)
        correct_influence = np.where(~has_error, (hit - scores.correct) * rows / (~has_error).sum(), 0.0)
        change_N = error_slope * error_influence + correct_slope * correct_influence
        f1 = _within_unit(clustered_mean(scores.f1 + change_N, clusters))
    else:  # both shares 0, or one unknown
        f1 = clustered_mean(np.full(rows, scores.f1), clusters)
    return {"error": error, "correct": correct, "f1": _bounded_by_shares(f1, error, correct)}


def _bounded_by_shares(f1: Estimate, error: Estimate, correct: Estimate) -> Estimate:
    """F1 with an interval also where all rows agree, so that no variance is seen.

    F1 rises in both shares, so their intervals bound it.
    """
    if not f1.n or f1.low < f1.high:
        return f1
    low = _harmonic_mean(error.low, correct.low)
    high = _harmonic_mean(error.high, correct.high)
    return replace(f1, low=min(f1.low, low), high=max(f1.high, high))


def _harmonic_mean(a: float, b: float) -> float:
    return 2 * a * b / (a + b) if a + b > 0 else 0.0


def auroc(scores_N: ArrayLike, positive_N: ArrayLike, clusters_N: ArrayLike) -> Estimate:
    """Probability that a positive scores above a negative, ties half, with an interval clustered by prompt.

    Each row's placement among the rows of the other kind is its influence (DeLong et al. 1988); clusters may hold both
    kinds. NaN with only one kind; kinds that do not overlap at all have the interval [0, 1].
    """
    scores = floats(scores_N)
    positive = np.asarray(positive_N, dtype=bool)
    clusters = np.asarray(clusters_N)
    positives = np.sort(scores[positive])
    negatives = np.sort(scores[~positive])
    if not positives.size or not negatives.size:
        return Estimate(float("nan"), -np.inf, np.inf, 0, 0)
    above_negatives_N = _share_below(negatives, scores)
    below_positives_N = 1 - _share_below(positives, scores)
    area = float(above_negatives_N[positive].mean())
    rows = len(scores)
    influence_N = np.where(
        positive,
        (above_negatives_N - area) * rows / positives.size,
        (below_positives_N - area) * rows / negatives.size,
    )
    if not influence_N.any():  # kinds that do not overlap show no variance
        return Estimate(area, 0.0, 1.0, rows, len(np.unique(clusters)))
    return _within_unit(clustered_mean(area + influence_N, clusters))


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
    threshold_for = {True: choose(~half), False: choose(half)}
    values = [apply(row, threshold_for[bool(side)]) for row, side in enumerate(half)]
    return np.array(values, dtype=np.float64)


def alarm_threshold(sound_N: ArrayLike, rate: float) -> float:
    """The largest threshold below which at most a share `rate` of the scores of sound solutions lies.

    NaN without sound solutions.
    """
    scores = np.sort(floats(sound_N))
    if not scores.size:
        return float("nan")
    may_be_below = int(rate * scores.size + 1e-9)  # the product may come out just below a whole number
    return float(scores[min(may_be_below, scores.size - 1)])


def flagged_at(scores_N: ArrayLike, sound_N: ArrayLike, half_N: ArrayLike, rate: float) -> FloatArray:
    """1 for solutions that score below the threshold at which a share `rate` of sound ones would, else 0, (N,).

    The threshold of each half comes from the sound solutions of the other; NaN where there is none.
    """
    scores = floats(scores_N)
    sound = np.asarray(sound_N, dtype=bool)

    def choose_threshold(mask: BoolArray) -> float:
        return alarm_threshold(scores[mask & sound], rate)

    def flag(row: int, threshold: float) -> float:
        return float("nan") if np.isnan(threshold) else float(scores[row] < threshold)

    return cross_fitted(half_N, choose_threshold, flag)


def located(steps_N: Sequence[ArrayLike], truth_N: ArrayLike, half_N: ArrayLike) -> FloatArray:
    """Place of the first step that a judge finds wrong, (N,), `NO_ERROR` for none.

    A step is wrong below a threshold; that of each half has the highest ProcessBench F1 on the other.
    """
    truth = np.asarray(truth_N)
    steps_by_row = [floats(steps) for steps in steps_N]

    def choose_threshold(mask: BoolArray) -> float:
        return best_threshold([steps_by_row[row] for row in np.flatnonzero(mask)], truth[mask])

    def locate(row: int, threshold: float) -> float:
        return first_error(steps_by_row[row], threshold)

    return cross_fitted(half_N, choose_threshold, locate)


def best_threshold(steps_N: Sequence[FloatArray], truth_N: ArrayLike) -> float:
    """The threshold with the highest ProcessBench F1 among quantiles of the steps' probabilities; of equals the lowest.

    ½ where there are no probabilities or one kind of solution is missing.
    """
    probabilities = np.concatenate([*steps_N, np.zeros(0)])
    if not probabilities.size:
        return 0.5
    candidates = np.unique(np.quantile(probabilities, np.linspace(0, 1, THRESHOLDS)))
    truth = np.asarray(truth_N).tolist()

    def f1_at(threshold: float) -> float:
        predictions = [first_error(steps, threshold) for steps in steps_N]
        return processbench_f1(predictions, truth).f1

    scores = [f1_at(threshold) for threshold in candidates]
    if np.isnan(scores).all():
        return 0.5
    return float(candidates[int(np.nanargmax(scores))])


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
    if n >= len(answers):
        draws = 1  # every subset is the whole
    total = 0.0
    for _ in range(draws):
        weight_of: dict[str, float] = {}
        correct_of: dict[str, float] = {}
        for i in rng.choice(len(answers), n, replace=False):
            answer = answers[i]
            if answer is not None:
                weight_of[answer] = weight_of.get(answer, 0.0) + weights[i]
                correct_of[answer] = correct[i]
        most = max(weight_of.values(), default=0.0)
        # Equal sums of weights may differ by rounding, as they are added up in another order.
        top = [correct_of[answer] for answer, weight in weight_of.items() if weight >= most * (1 - 1e-12)]
        total += sum(top) / len(top) if top else 0.0
    return total / draws


def _share_below(sorted_M: FloatArray, scores_N: FloatArray) -> FloatArray:
    """Share of `sorted_M` that lies below each score, ties half, (N,)."""
    strictly_below_N = np.searchsorted(sorted_M, scores_N, side="left") / sorted_M.size
    at_most_N = np.searchsorted(sorted_M, scores_N, side="right") / sorted_M.size
    return (strictly_below_N + at_most_N) / 2


def _within_unit(estimate: Estimate) -> Estimate:
    """A rate lies in [0, 1], and a t interval about one need not."""
    return replace(estimate, low=max(estimate.low, 0.0), high=min(estimate.high, 1.0))
