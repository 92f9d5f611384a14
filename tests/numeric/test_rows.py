"""rlhf_lab.statistics.rows reads columns and groups of rows and estimates what a row's column holds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlhf_lab.statistics import rows
from rlhf_lab.statistics.estimates import Estimate
from rlhf_lab.statistics.inference import clustered_mean, clustered_rate

ROWS = [{"prompt": "b", "score": 1.0}, {"prompt": "a", "score": None}, {"prompt": "b", "score": 0.0}, {"prompt": "c"}]


def test_missing_values_are_nan_in_a_column_and_left_out_of_outcomes() -> None:
    np.testing.assert_array_equal(rows.column(ROWS, "score"), [1.0, math.nan, 0.0, math.nan])
    assert list(rows.grouped(ROWS, "prompt")) == ["b", "a", "c"]
    assert rows.grouped(ROWS, "prompt")["b"] == [ROWS[0], ROWS[2]]
    assert rows.outcomes_by(ROWS, "prompt", "score") == {"b": [1.0, 0.0]}


def test_only_zeros_and_ones_are_a_rate() -> None:
    clusters = ["a", "a", "b", "c"]
    assert rows.rate_or_mean([1.0, 0.0, math.nan, 1.0], clusters) == clustered_rate([1.0, 0.0, math.nan, 1.0], clusters)
    assert rows.rate_or_mean([1.0, 0.5, 0.0, 1.0], clusters) == clustered_mean([1.0, 0.5, 0.0, 1.0], clusters)


def test_fractions_at_each_size_are_means_over_tasks() -> None:
    estimates = rows.fractions_at("pass", [1, 2], [np.array([0.5, 1.0]), np.array([0.0, 0.0])], ["a", "b"], trials=4)
    assert {name: estimate.mean for name, estimate in estimates.items()} == pytest.approx(
        {"pass@1": 0.25, "pass@2": 0.5}
    )


def test_the_bound_of_a_zero_rate_counts_clusters() -> None:
    bound = rows.upper_bound(Estimate(0.0, 0.0, 0.3, 40, 10))
    assert (bound.mean, bound.n, bound.clusters) == (pytest.approx(1 - 0.05**0.1), 40, 10)
