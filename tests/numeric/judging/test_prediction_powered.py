"""Prediction-powered means: the arithmetic, the formula of the paper, coverage, and never worse than people alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from rlhf_lab.core.errors import NumericError
from rlhf_lab.packs.judging.statistics.prediction_powered import prediction_powered_mean
from rlhf_lab.packs.judging.statistics.win_rates import added_variance


def is_generated(
    rng: np.random.Generator, prompts: int, labelled: int, *, accuracy: float, bias: float, per_prompt: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Judge, people (NaN where not labelled), prompts. A judge that says what people say, or 1 with chance `bias`."""
    easy_N = np.repeat(rng.beta(1.2, 0.8, prompts), per_prompt)
    people_N = (rng.random(prompts * per_prompt) < easy_N).astype(float)
    judge_N = np.where(rng.random(len(people_N)) < accuracy, people_N, rng.random(len(people_N)) < bias)
    shown_N = np.full(len(people_N), np.nan)
    chosen_L = rng.choice(len(people_N), labelled, replace=False)
    shown_N[chosen_L] = people_N[chosen_L]
    return judge_N.astype(float), shown_N, np.repeat(np.arange(prompts), per_prompt)


def test_a_judge_that_is_always_right_by_hand():
    # Labelled: people 1, 0 and judge 1, 0. Not labelled: judge 1, 1, 1, 0, mean ¾.
    # A = (½, −½)/2 over the labelled, B = −A there and (¼, ¼, ¼, −¾)/4 over the rest.
    # ΣAB = −2/16 = −.125, ΣB² = .125 + 12/16/16 = .171875: λ = .125/.171875 = 8/11. θ = ½ + 8/11·(¾ − ½) = 15/22.
    corrected = prediction_powered_mean([1, 0, 1, 1, 1, 0], [1, 0, None, None, None, None], range(6))
    assert corrected.weight == pytest.approx(8 / 11)
    assert corrected.mean.mean == pytest.approx(15 / 22)
    assert corrected.people.mean == 0.5
    assert corrected.judge.mean == pytest.approx(4 / 6)
    assert corrected.judge_gap.mean == pytest.approx(-0.25)


def test_the_weight_is_that_of_the_paper_for_single_rows():
    judge_N, people_N, prompt_N = is_generated(np.random.default_rng(0), 300, 80, accuracy=0.7, bias=0.7)
    labelled_N = ~np.isnan(people_N)
    y, f, rest = people_N[labelled_N], judge_N[labelled_N], judge_N[~labelled_N]
    # PPI++, example 6.1: λ = Cov(y, f)/((1 + n/N)·Var(f)), Var(f) of both parts weighed as in the variance of θ.
    n, others = len(y), len(rest)
    covariance = np.mean((y - y.mean()) * (f - f.mean()))
    weight = covariance / n / (f.var() / n + rest.var() / others)
    corrected = prediction_powered_mean(judge_N, people_N, prompt_N)
    assert corrected.weight == pytest.approx(weight)
    mean = y.mean() + weight * (rest.mean() - f.mean())
    assert corrected.mean.mean == pytest.approx(mean)
    variance = np.mean((y - weight * f - (y - weight * f).mean()) ** 2) / n + weight**2 * rest.var() / others
    error = math.sqrt(variance * n / (n - 1) + added_variance(mean, n))
    assert corrected.mean.high - mean == pytest.approx(stats.t.ppf(0.975, n - 1) * error)


def test_without_a_judge_or_without_other_rows_people_are_alone():
    for judge, people in (([None] * 4, [1, 0, 1, None]), ([1, 0, 1], [1, 0, 1]), ([0.5] * 5, [1, 0, 1, None, None])):
        corrected = prediction_powered_mean(judge, people, range(len(judge)))
        assert corrected.weight == 0.0
        assert corrected.mean.mean == pytest.approx(2 / 3)
        assert corrected.mean.low == corrected.people.low


def test_one_label_gives_no_interval_and_none_gives_no_mean():
    one = prediction_powered_mean([1, 0, 1], [1, None, None], range(3))
    assert not one.mean.bounded
    none = prediction_powered_mean([1, 0, 1], [None, None, None], range(3))
    assert math.isnan(none.mean.mean) and none.judge.mean == pytest.approx(2 / 3)
    with pytest.raises(NumericError, match="one of each per row"):
        prediction_powered_mean([1], [1, 0], range(2))


@pytest.mark.parametrize(("accuracy", "bias", "per_prompt"), [(0.8, 0.9, 1), (0.0, 0.9, 1), (0.8, 0.2, 3)])
def test_intervals_cover_and_a_good_judge_narrows_them(accuracy: float, bias: float, per_prompt: int):
    """The truth is 1.2/2 = .6; the judge alone is wrong by up to .3."""
    rng = np.random.default_rng(1)
    model_copies, width, people_width, judge_held = [], [], [], []
    for _ in range(300):
        data = is_generated(rng, 360 // per_prompt, 60, accuracy=accuracy, bias=bias, per_prompt=per_prompt)
        corrected = prediction_powered_mean(*data)
        model_copies.append(corrected.mean.low <= 0.6 <= corrected.mean.high)
        judge_held.append(corrected.judge.low <= 0.6 <= corrected.judge.high)
        width.append(corrected.mean.high - corrected.mean.low)
        people_width.append(corrected.people.high - corrected.people.low)
    assert np.mean(model_copies) >= 0.92
    assert np.mean(judge_held) < 0.7
    assert np.mean(width) <= 1.005 * np.mean(people_width)
    if accuracy:
        assert np.mean(width) < 0.8 * np.mean(people_width)
