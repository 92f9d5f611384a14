"""Rates of runs near 0 and 1, and equal ones: means and differences of levels against arithmetic on the page."""

from __future__ import annotations

import math

import memory_study
import numpy as np
import pytest
from scipy import stats

from rlhf_lab.statistics.inference import Estimate, wilson
from rlhf_lab.studies.replicates import level_difference, level_mean

T2 = 4.302653
"""97.5 % of t with 2 degrees of freedom."""


def study_of(*levels: list[Estimate]):
    values_LSM4 = np.array([[[(run.mean, run.low, run.high, run.n)] for run in level] for level in levels])
    return memory_study.build(values_LSM4, ("garble",), range(len(levels)), memory_study.REDRAWN)


def test_three_runs_without_a_success_leave_room_for_some():
    # Wilson's interval of 0 of 64 is [0, 3.84/67.84]: an error of .0566/2/1.96 = .01445, of which half remains.
    mean = level_mean(study_of([wilson(0, 64)] * 3), "garble", "0")
    assert mean.high == pytest.approx(T2 * 0.01445 / 2 / math.sqrt(3), rel=1e-3)
    assert 0.02 < (1 - mean.high) ** 192 < 0.05  # a rate that seldom shows no success in 192 rows


def test_equal_rates_in_the_middle_keep_a_tenth_of_their_error():
    half = (wilson(32, 64).high - 0.5) / stats.norm.ppf(0.975)
    mean = level_mean(study_of([wilson(32, 64)] * 3), "garble", "0")
    assert mean.high - 0.5 == pytest.approx(T2 * half / 10 / math.sqrt(3), rel=1e-6)


def test_one_success_in_every_run_against_none_proves_nothing():
    # 3 of 192 against 0 of 192 has p .25 by Fisher's exact test.
    comparison = level_difference(study_of([wilson(0, 64)] * 3, [wilson(1, 64)] * 3), "garble", "1")
    assert comparison is not None
    assert comparison.difference.mean == pytest.approx(1 / 64)
    assert comparison.p_value > 0.05


def test_runs_without_an_interval_are_judged_by_their_spread():
    runs = [Estimate(value, -math.inf, math.inf, 64, 1) for value in (0.1, 0.2, 0.3)]
    with np.errstate(all="raise"):
        mean = level_mean(study_of(runs), "garble", "0")
    assert mean.high - 0.2 == pytest.approx(T2 * 0.1 / math.sqrt(3), rel=1e-6)
