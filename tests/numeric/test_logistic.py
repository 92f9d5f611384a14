"""Weighted logistic regressions by hand, and the bootstrap over clusters."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlhf_lab.statistics.logistic import clustered_logistic, fit_weighted, is_separated, sigmoid
from rlhf_lab.statistics.resampling import bootstrap_estimate, expanded_tail, resample_weights

ONE_AND_GROUP = np.array([[1.0, 0.0]] * 4 + [[1.0, 1.0]] * 4)
OUTCOMES = np.array([1.0, 0, 0, 0, 1, 1, 1, 0])


def test_two_groups_are_fitted_by_their_log_odds():
    """1 of 4 and 3 of 4: −log 3 and log 3 in logits. A draw that weighs won rows of the first group 3 evens it out."""
    weights = np.ones((2, 8))
    weights[1, 0] = 3
    coefficients, converged = fit_weighted(ONE_AND_GROUP, OUTCOMES, weights)
    assert converged.all()
    assert coefficients[0] == pytest.approx([-math.log(3), 2 * math.log(3)])
    assert coefficients[1] == pytest.approx([0, math.log(3)], abs=1e-8)
    assert sigmoid(coefficients[0].sum()) == pytest.approx(0.75)


def test_the_clustered_variance_of_a_mean_by_hand():
    """One column, p = 1/2, two clusters of two rows with residual sums 1 and −1: V = 2/1 · (1² + 1²)/(4 · ¼)² = 4."""
    fit = clustered_logistic(np.ones((4, 1)), [1, 1, 0, 0], [0, 0, 1, 1])
    assert fit.coefficients_M == pytest.approx([0]) and fit.covariance_MM[0, 0] == pytest.approx(4)
    assert (fit.n, fit.clusters) == (4, 2)


def test_without_a_finite_estimate_the_reason_is_said():
    assert is_separated(ONE_AND_GROUP, ONE_AND_GROUP[:, 1]) and not is_separated(ONE_AND_GROUP, OUTCOMES)
    fit = clustered_logistic(ONE_AND_GROUP, ONE_AND_GROUP[:, 1], np.arange(8))
    assert "without an exception" in fit.problem and np.isnan(fit.coefficients_M).all()


def test_each_draw_takes_as_many_clusters_as_there_are():
    weights = resample_weights(5, 200)
    assert weights.shape == (200, 5) and (weights.sum(axis=1) == 5).all()
    assert weights.mean() == pytest.approx(1) and (weights == resample_weights(5, 200)).all()
    assert expanded_tail(10) == pytest.approx(0.0086, abs=5e-5) and expanded_tail(10_000) == pytest.approx(
        0.025, abs=1e-4
    )


def test_an_interval_of_draws_holds_its_value():
    found = bootstrap_estimate(9.0, np.linspace(0, 1, 101), n=100, clusters=50)
    assert found.high == 9.0 and 0 < found.low < 0.05
    assert bootstrap_estimate(0.5, np.ones(3), n=3, clusters=1).low == -math.inf
