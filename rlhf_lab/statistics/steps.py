"""Metrics of step judges on worked solutions: naming the first wrong step, and the false alarms that this costs.

ProcessBench (arXiv:2412.06559; its scorer is in `reward_bench.py`): a judge names the first wrong step of a solution,
or none. A solution with a mistake counts as right if exactly that step is named, one without a mistake if none is
named. F1 is the harmonic mean of the two accuracies.

The steps of a solution are a list of probabilities or labels in order; solutions differ in length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from rlhf_lab.core.types import BoolArray, FloatArray
from rlhf_lab.statistics.estimates import Estimate, cluster_labels, floats
from rlhf_lab.statistics.inference import clustered_mean, clustered_rate
from rlhf_lab.statistics.reward_bench import NO_ERROR, ProcessBench, first_error, processbench_f1

THRESHOLDS = 200
"""Number of candidate thresholds, at quantiles of a judge's probabilities."""


def first_wrong(labels: Sequence[float]) -> int:
    """Return the index of the first 0 among step labels, or `NO_ERROR`."""
    return next((i for i, label in enumerate(labels) if label == 0), NO_ERROR)


def process_bench_estimates(predicted_N: ArrayLike, truth_N: ArrayLike, clusters_N: ArrayLike) -> dict[str, Estimate]:
    """Return ProcessBench's `error`, `correct` and `f1` with intervals clustered by prompt (F1: delta method).

    Args:
        predicted_N, truth_N: (N,) index of the first wrong step, `NO_ERROR` for none.
    """
    predicted, truth, clusters = np.asarray(predicted_N), np.asarray(truth_N), cluster_labels(clusters_N)
    rows = len(truth)
    hit = (predicted == truth).astype(float)
    has_error = truth != NO_ERROR
    scores = processbench_f1(predicted.tolist(), truth.tolist())
    error = clustered_rate(hit[has_error], clusters[has_error])
    correct = clustered_rate(hit[~has_error], clusters[~has_error])
    total = scores.error + scores.correct
    if total > 0:
        # Delta method: the influence of a row on F1 is its influence on its accuracy times the slope of F1 in it.
        error_slope = 2 * scores.correct**2 / total**2
        correct_slope = 2 * scores.error**2 / total**2
        error_gap = (hit - scores.error) * rows / has_error.sum()
        correct_gap = (hit - scores.correct) * rows / (~has_error).sum()
        change_N = np.where(has_error, error_slope * error_gap, correct_slope * correct_gap)
        f1 = clustered_mean(scores.f1 + change_N, clusters).within(0.0, 1.0)
    else:  # both accuracies are 0, or one is unknown
        f1 = clustered_mean(np.full(rows, scores.f1), clusters)
    return {"error": error, "correct": correct, "f1": _bounded_by_fractions(f1, error, correct)}


def _bounded_by_fractions(f1: Estimate, error: Estimate, correct: Estimate) -> Estimate:
    """Replace an interval of width 0 (all rows agree) by that of the accuracies: F1 increases in both."""
    if not f1.n or f1.low < f1.high:
        return f1
    low, high = ProcessBench(error.low, correct.low).f1, ProcessBench(error.high, correct.high).f1
    return replace(f1, low=min(f1.low, low), high=max(f1.high, high))


def auroc(scores_N: ArrayLike, positive_N: ArrayLike, clusters_N: ArrayLike) -> Estimate:
    """Return the probability that a positive scores above a negative, ties half, with an interval clustered by prompt.

    The influence of a row is its placement among the rows of the other kind (DeLong et al. 1988); a cluster may contain
    both kinds. NaN with only one kind. If the two kinds do not overlap at all, the interval is [0, 1].
    """
    scores, positive, clusters = floats(scores_N), np.asarray(positive_N, dtype=bool), cluster_labels(clusters_N)
    positives, negatives = np.sort(scores[positive]), np.sort(scores[~positive])
    if not positives.size or not negatives.size:
        return Estimate(float("nan"), -np.inf, np.inf, 0, 0)
    above_negatives_N = _fraction_below(negatives, scores)
    below_positives_N = 1 - _fraction_below(positives, scores)
    area = float(above_negatives_N[positive].mean())
    rows = len(scores)
    influence_N = np.where(
        positive, (above_negatives_N - area) * rows / positives.size, (below_positives_N - area) * rows / negatives.size
    )
    if not influence_N.any():  # kinds that do not overlap have an observed variance of 0
        return Estimate(area, 0.0, 1.0, rows, len(np.unique(clusters)))
    return clustered_mean(area + influence_N, clusters).within(0.0, 1.0)


def cross_fitted(
    half_N: ArrayLike, choose: Callable[[BoolArray], float], apply: Callable[[int, float], float]
) -> FloatArray:
    """Return a value per row, (N,), from a threshold that was chosen on the half of the rows without this row.

    Args:
        half_N: True for the rows of one half; no prompt is in both halves.
        choose, apply: functions from the mask of usable rows to a threshold, and from (row, threshold) to the value.
    """
    half = np.asarray(half_N, dtype=bool)
    # chosen on the other half: a threshold fits the rows that it was chosen on better than new ones
    threshold_for = {True: choose(~half), False: choose(half)}
    values = [apply(row, threshold_for[bool(side)]) for row, side in enumerate(half)]
    return np.array(values, dtype=np.float64)


def alarm_threshold(sound_N: ArrayLike, rate: float) -> float:
    """Return the maximum threshold with at most a fraction `rate` of the scores of correct solutions below it.

    NaN without correct solutions.
    """
    scores = np.sort(floats(sound_N))
    if not scores.size:
        return float("nan")
    may_be_below = int(rate * scores.size + 1e-9)  # rounding may put the product just below an integer
    # Scores equal to the threshold are not below it.
    return float(scores[min(may_be_below, scores.size - 1)])


def flagged_at(scores_N: ArrayLike, sound_N: ArrayLike, half_N: ArrayLike, rate: float) -> FloatArray:
    """Return 1 for solutions below the threshold that flags a fraction `rate` of correct ones, else 0, (N,).

    The threshold of each half is chosen on the correct solutions of the other half; NaN if there are none.
    """
    scores = floats(scores_N)
    sound = np.asarray(sound_N, dtype=bool)

    def choose_threshold(mask: BoolArray) -> float:
        return alarm_threshold(scores[mask & sound], rate)

    def flag(row: int, threshold: float) -> float:
        return float("nan") if np.isnan(threshold) else float(scores[row] < threshold)

    return cross_fitted(half_N, choose_threshold, flag)


def located(steps_N: Sequence[ArrayLike], truth_N: ArrayLike, half_N: ArrayLike) -> FloatArray:
    """Return the index of the first step that a judge finds wrong, (N,), `NO_ERROR` for none.

    A step is wrong below a threshold. Each half uses the threshold with the highest ProcessBench F1 on the other half.
    """
    truth = np.asarray(truth_N)
    steps_by_row = [floats(steps) for steps in steps_N]

    def choose_threshold(mask: BoolArray) -> float:
        return best_threshold([steps_by_row[row] for row in np.flatnonzero(mask)], truth[mask])

    def locate(row: int, threshold: float) -> float:
        return first_error(steps_by_row[row], threshold)

    return cross_fitted(half_N, choose_threshold, locate)


def best_threshold(steps_N: Sequence[FloatArray], truth_N: ArrayLike) -> float:
    """Return the threshold with the highest ProcessBench F1 among quantiles of the steps' probabilities.

    If several are equally good it is the lowest. It is ½ if there are no probabilities or one kind of solution is
    missing.
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
    return 0.5 if np.isnan(scores).all() else float(candidates[int(np.nanargmax(scores))])


def vote_of_n(
    answers: Sequence[str | None],
    correct: Sequence[float],
    weights: Sequence[float],
    n: int,
    draws: int,
    rng: np.random.Generator,
) -> float:
    """Return the accuracy of the answer with the highest total weight among n samples, as a mean over random subsets.

    The estimate is unbiased. Equal weights give a majority vote (arXiv:2203.11171), the scores of a judge a weighted
    one (arXiv:2206.02336). Ties are broken at random, in expectation. A sample without an answer has no vote, and a
    subset without any answer is wrong.

    Args:
        answers, correct, weights: answer (or None) of each sample, 1 if it is right, and the weight of its vote.
        n: size of the subsets.
        draws: number of random subsets.
    """
    if n >= len(answers):
        draws = 1  # the only subset is the full set
    total = 0.0
    for _ in range(draws):
        weight_of: dict[str, float] = {}
        correct_of: dict[str, float] = {}
        for i in rng.choice(len(answers), n, replace=False):
            answer = answers[i]
            if answer is not None:
                weight_of[answer] = weight_of.get(answer, 0.0) + weights[i]
                correct_of[answer] = correct[i]
        largest = max(weight_of.values(), default=0.0)
        # Equal sums of weights may differ by rounding, because they are added in another order.
        top = [correct_of[answer] for answer, weight in weight_of.items() if weight >= largest * (1 - 1e-12)]
        total += sum(top) / len(top) if top else 0.0
    return total / draws


def _fraction_below(sorted_M: FloatArray, scores_N: FloatArray) -> FloatArray:
    """Return the fraction of `sorted_M` below each score, ties half, (N,)."""
    strictly_below_N = np.searchsorted(sorted_M, scores_N, side="left") / sorted_M.size
    upper_N = np.searchsorted(sorted_M, scores_N, side="right") / sorted_M.size
    return (strictly_below_N + upper_N) / 2
