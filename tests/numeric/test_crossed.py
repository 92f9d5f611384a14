"""Crossed runs and prompts: arithmetic on the page, and repeated sampling."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from rlhf_lab.analysis.crossed import crossed_difference, crossed_mean


def test_crossed_mean_by_hand():
    # Two runs × two prompts: means of runs 2 and 4, of prompts 2 and 4, grand mean 3; rest ±1.
    #   MS_runs = 2·((−1)² + 1²)/1 = 4, MS_prompts = 4, MS_rest = 4·1²/1 = 4, so prompts add nothing beyond the rest:
    #   V = 4/4 = 1, ν = 1
    values_SP = np.array([[2.0, 2.0], [2.0, 6.0]])
    estimate = crossed_mean(values_SP)
    assert estimate.mean == 3
    assert estimate.high - 3 == pytest.approx(stats.t.ppf(0.975, 1))


def test_the_freedom_is_between_that_of_runs_and_of_prompts():
    # MS_runs = 3·(1 + 0 + 1)/2 = 3 and MS_prompts = 3·(4 + 0 + 4)/2 = 12 of a table without rest:
    #   V = 15/9, w = .2, 1/ν = .2/2 + .8/2
    values_SP = np.array([-1.0, 0.0, 1.0])[:, None] + np.array([-2.0, 0.0, 2.0])
    comparison = crossed_difference(values_SP, np.zeros((3, 3)))
    assert comparison.standard_error == pytest.approx(math.sqrt(15) / 3)
    assert comparison.freedom == pytest.approx(2)


@pytest.mark.parametrize(("of_run", "prompts"), [(1.0, 30), (0.2, 500)])
def test_three_runs_cover_other_runs_and_prompts(of_run: float, prompts: int):
    # Satterthwaite's degrees of freedom cover .92 of both.
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(4000):
        values_SP = rng.normal(0, of_run, (3, 1)) + rng.normal(0, 1, prompts) + rng.normal(0, 0.5, (3, prompts))
        estimate = crossed_mean(values_SP)
        covered += estimate.low <= 0 <= estimate.high
    assert covered / 4000 == pytest.approx(0.95, abs=0.015)
