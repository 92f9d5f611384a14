"""Runs and prompts crossed: the arithmetic, statsmodels' sums of squares, how often the interval is right."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from scipy import stats
from statsmodels.stats.anova import anova_lm

from rlhf_lab.core.errors import NumericError
from rlhf_lab.statistics.crossed import crossed_difference, crossed_mean


def test_crossed_mean_by_hand():
    # Runs (1, 2, 3) and (3, 4, 8): mean 3.5, run means 2 and 5, prompt means 2, 3 and 5.5.
    # MS_runs = 3·(1.5² + 1.5²)/1 = 13.5.  MS_prompts = 2·(1.5² + .5² + 2²)/2 = 6.5.
    # Rest: 1−2−2+3.5 = .5, 2−2−3+3.5 = .5, 3−2−5.5+3.5 = −1 and the opposite: 2·(.25 + .25 + 1)/2 = 1.5.
    # V = (13.5 + 6.5 − 1.5)/6 = 3.0833,  ν = 18.5/(13.5/1 + 5/2) = 1.15625.
    estimate = crossed_mean([[1, 2, 3], [3, 4, 8]])
    freedom = 18.5 / (13.5 + 2.5)
    assert estimate.mean == 3.5
    assert estimate.high - 3.5 == pytest.approx(stats.t.ppf(0.975, freedom) * math.sqrt(18.5 / 6))
    assert (estimate.n, estimate.clusters) == (6, 2)


def test_mean_squares_are_those_of_a_two_way_analysis_of_variance():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(4, 1)) + rng.normal(size=(1, 12)) + rng.normal(size=(4, 12))
    rows = pd.DataFrame({"y": table.ravel(), "run": np.repeat(range(4), 12), "prompt": np.tile(range(12), 4)})
    squares = anova_lm(smf.ols("y ~ C(run) + C(prompt)", rows).fit())["sum_sq"]
    runs, prompts, rest = squares.iloc[0] / 3, squares.iloc[1] / 11, squares.iloc[2] / 33
    error = math.sqrt((runs + prompts - rest) / 48)
    comparison = crossed_difference(table, np.zeros_like(table))
    assert comparison.standard_error == pytest.approx(error)
    assert comparison.p_value == pytest.approx(2 * stats.t.sf(abs(table.mean()) / error, comparison.freedom))


def test_more_prompts_do_not_make_up_for_few_runs_nor_the_other_way_round():
    rng = np.random.default_rng(1)
    runs, prompts = rng.normal(size=(3, 1)), rng.normal(size=(1, 4000))
    by_runs = crossed_mean(runs + 0.1 * rng.normal(size=(3, 4000)))
    assert by_runs.high - by_runs.mean > 0.9 * stats.t.ppf(0.975, 2) * runs.std(ddof=1) / math.sqrt(3)
    by_prompts = crossed_mean(np.repeat(prompts[:, :40], 50, axis=0))
    assert by_prompts.high - by_prompts.mean == pytest.approx(
        stats.t.ppf(0.975, 39) * prompts[0, :40].std(ddof=1) / math.sqrt(40), rel=1e-6
    )


def test_prompts_that_a_run_left_unscored_are_left_out_and_counted():
    estimate = crossed_mean([[1, 2, np.nan, 4], [2, 3, 4, 6]])
    assert (estimate.n, estimate.unscored) == (6, 2)
    assert not crossed_mean([[1.0, 2.0]]).bounded
    with pytest.raises(NumericError, match="same runs × prompts"):
        crossed_difference(np.zeros((2, 3)), np.zeros((3, 3)))


def test_the_freedom_is_between_that_of_runs_and_of_prompts():
    # MS_runs = 3·(1 + 0 + 1)/2 = 3 and MS_prompts = 3·(4 + 0 + 4)/2 = 12 of a table without rest:
    #   V = 15/9, w = .2, 1/ν = .2/2 + .8/2
    values_SP = np.array([-1.0, 0.0, 1.0])[:, None] + np.array([-2.0, 0.0, 2.0])
    comparison = crossed_difference(values_SP, np.zeros((3, 3)))
    assert comparison.standard_error == pytest.approx(math.sqrt(15) / 3)
    assert comparison.freedom == pytest.approx(2)


@pytest.mark.slow
@pytest.mark.parametrize(("of_run", "prompts"), [(1.0, 30), (0.2, 500)])
@pytest.mark.long
def test_three_runs_cover_other_runs_and_prompts(of_run: float, prompts: int):
    # Satterthwaite's degrees of freedom cover .92 of both.
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(4000):
        values_SP = rng.normal(0, of_run, (3, 1)) + rng.normal(0, 1, prompts) + rng.normal(0, 0.5, (3, prompts))
        estimate = crossed_mean(values_SP)
        covered += estimate.low <= 0 <= estimate.high
    assert covered / 4000 == pytest.approx(0.95, abs=0.015)
