"""Scores of judges of solutions against cases worked by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rlhf_lab.statistics.best_of_n import best_of_n
from rlhf_lab.statistics.steps import (
    alarm_threshold,
    auroc,
    best_threshold,
    first_wrong,
    flagged_at,
    located,
    process_bench_estimates,
    vote_of_n,
)


def test_first_wrong():
    assert first_wrong([1, 1, 0, 1]) == 2
    assert first_wrong([1, 1]) == -1
    assert first_wrong([]) == -1
    assert first_wrong([1, 0.5]) == -1  # a soft label is no verdict


def test_process_bench_by_hand():
    """Four with a mistake, three of them named right; two without, one passed: F1 = 2·.75·.5/1.25 = .6."""
    truth, predicted = [0, 1, 2, 1, -1, -1], [0, 1, 2, 0, -1, 3]
    found = process_bench_estimates(predicted, truth, np.arange(6))
    assert (found["error"].mean, found["correct"].mean) == (0.75, 0.5)
    assert found["f1"].mean == pytest.approx(0.6)
    assert (found["error"].n, found["correct"].n, found["f1"].n) == (4, 2, 6)
    assert 0 <= found["f1"].low < 0.6 < found["f1"].high <= 1


def test_an_earlier_and_a_later_step_are_both_wrong():
    assert process_bench_estimates([1, 3, -1, -1], [2, 2, 2, -1], np.arange(4))["f1"].mean == 0


def test_the_interval_of_f1_is_that_of_repeated_samples():
    """Delta method against the spread of 400 samples of 600 solutions."""
    rng = np.random.default_rng(0)

    def draw():
        truth = np.where(rng.random(600) < 0.4, 1, -1)
        hit = rng.random(600) < np.where(truth == 1, 0.6, 0.85)
        return process_bench_estimates(np.where(hit, truth, 5), truth, np.arange(600))["f1"]

    found = [draw() for _ in range(400)]
    spread = np.std([each.mean for each in found])
    half = np.mean([(each.high - each.low) / 2 for each in found])
    assert half == pytest.approx(1.96 * spread, rel=0.12)


def test_auroc_by_hand():
    """Positives .9, .4; negatives .4, .1: pairs won 1, 1, ½, 1 → 3.5/4."""
    found = auroc([0.9, 0.4, 0.4, 0.1], [True, True, False, False], np.arange(4))
    assert found.mean == pytest.approx(0.875)
    assert auroc([0.1, 0.2], [True, True], [0, 1]).n == 0


def test_auroc_is_that_of_all_pairs_and_its_interval_covers():
    rng = np.random.default_rng(1)
    covered = []
    for _ in range(200):
        positive = rng.random(120) < 0.3
        scores = rng.normal(size=120) + positive  # P(N(1,1) > N(0,1)) = Φ(1/√2) = .760250
        found = auroc(scores, positive, np.arange(120))
        pairs = [float(a > b) for a, b in itertools.product(scores[positive], scores[~positive])]
        assert found.mean == pytest.approx(np.mean(pairs))
        covered.append(found.low <= 0.760250 <= found.high)
    assert 0.91 <= np.mean(covered) <= 0.99


def test_the_threshold_keeps_the_false_alarms():
    """10 % of 20 sound scores 0 … 19 are two: those below 2."""
    assert alarm_threshold(np.arange(20), 0.10) == 2
    assert alarm_threshold(np.arange(20), 0.04) == 0
    assert alarm_threshold([5, 5, 5, 5], 0.5) == 5  # equal scores are flagged together or not at all
    assert np.isnan(alarm_threshold([], 0.1))


def test_each_half_is_judged_by_the_others_threshold():
    """Half A's sound scores are 0…9, B's 10…19: at 10 % A's threshold is 11 (all of A flagged), B's is 1 (none)."""
    scores, half = np.arange(20.0), np.arange(20) >= 10
    flagged = flagged_at(scores, np.ones(20, bool), half, 0.10)
    assert flagged.tolist() == [1.0] * 10 + [0.0] * 10
    assert np.isnan(flagged_at([0.1, 0.9, 0.2], [False] * 3, [True, False, True], 0.1)).all()


def test_false_alarms_are_what_was_asked_for():
    rng = np.random.default_rng(2)
    scores, half = rng.random(20_000), np.arange(20_000) % 2 == 1
    sound = rng.random(20_000) < 0.7
    assert flagged_at(scores, sound, half, 0.05)[sound].mean() == pytest.approx(0.05, abs=0.01)


def test_the_best_threshold_separates():
    rows = [np.array([0.9, 0.2, 0.1]), np.array([0.8, 0.7]), np.array([0.3, 0.9])]
    threshold = best_threshold(rows, [1, -1, 0])
    assert 0.3 < threshold <= 0.7
    assert located(rows * 2, [1, -1, 0] * 2, [True] * 3 + [False] * 3).tolist() == [1, -1, 0] * 2
    assert best_threshold([], []) == 0.5


def test_votes_by_hand():
    """All three: "7" wins. Of pairs of (7, 7, 8): one agrees on 7, two tie: ⅔. By weight .2 + .2 < .5."""
    rng, answers, correct = np.random.default_rng(0), ["7", "7", "8"], [1, 1, 0]
    assert vote_of_n(answers, correct, [1, 1, 1], 3, 1, rng) == 1
    assert vote_of_n(answers, correct, [1, 1, 1], 2, 6000, rng) == pytest.approx(2 / 3, abs=0.01)
    assert vote_of_n(answers, correct, [0.2, 0.2, 0.5], 3, 1, rng) == 0
    assert vote_of_n(answers, correct, [0.2, 0.4, 0.5], 3, 1, rng) == 1
    assert vote_of_n(["7", None, None], [1, 0, 0], [1, 1, 1], 3, 1, rng) == 1
    assert vote_of_n([None, None], [0, 0], [1, 1], 2, 1, rng) == 0
    assert vote_of_n(["7", "8"], [1, 0], [1, 1], 2, 1, rng) == 0.5


def test_best_of_n_by_hand():
    """1 − C(N−c, k)/C(N, k): 2 right of 5, k = 2: 1 − 3/10; k = 4: 1."""
    correct = [1, 0, 0, 1, 0]
    assert best_of_n(correct, correct, [1, 2, 4]) == pytest.approx([0.4, 0.7, 1.0])
    # Scores .9, .5, .1 and answers wrong, right, wrong: the pairs choose wrong, wrong, right.
    assert best_of_n([0.9, 0.5, 0.1], [0, 1, 0], [2]) == pytest.approx([1 / 3])
