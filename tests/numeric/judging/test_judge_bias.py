"""Win rates and the biases of a judge: planted in simulated votes, recovered within their intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats
from scipy.optimize import minimize

from rlhf_lab.core.errors import NumericError
from rlhf_lab.packs.judging.statistics.judge_bias import excess_preference, position_bias
from rlhf_lab.packs.judging.statistics.win_rates import length_controlled_win_rate, saturated, win_rate
from rlhf_lab.statistics.inference import clustered_rate
from rlhf_lab.statistics.logistic import sigmoid

POSITION, LENGTH, OWN = 0.6, 0.8, 0.5
"""Planted, in logits: for the response shown first, per unit of length difference, for the judge's own response."""


@dataclass
class Votes:
    """Votes of a simulated judge for response A in both orders, and what they follow."""

    prompt_N: np.ndarray
    length_N: np.ndarray
    shown_first_N: np.ndarray
    shown_second_N: np.ndarray

    @property
    def mean_N(self) -> np.ndarray:
        return (self.shown_first_N + self.shown_second_N) / 2


def judged(rng: np.random.Generator, prompts: int, *, longer: float, position: float = POSITION) -> Votes:
    """Two comparisons per prompt, in both orders. Quality varies about 0, length about `longer`."""
    prompt_N = np.repeat(np.arange(prompts), 2)
    quality_N = np.repeat(rng.normal(size=prompts), 2) + rng.normal(size=2 * prompts)
    length_N = longer + rng.normal(size=2 * prompts)
    own_N = rng.choice([-1.0, 0.0, 1.0], 2 * prompts)
    logit_N = quality_N + LENGTH * length_N + OWN * own_N
    shown_first_N = (rng.random(2 * prompts) < sigmoid(logit_N + position)).astype(float)
    shown_second_N = (rng.random(2 * prompts) < sigmoid(logit_N - position)).astype(float)
    return Votes(prompt_N, length_N, shown_first_N, shown_second_N)


def test_position_bias_by_hand():
    # Comparison 1: A wins both times. 2: the position shown first wins twice. 3: tie, then A. 4: one order is missing.
    bias = position_bias([1, 1, 0.5, 1], [1, 0, 1, None], range(4))
    # Votes for the first position: 1, 0 | 1, 1 | ½, 0: mean 3.5/6.
    assert bias.first_shown_wins.mean == pytest.approx(3.5 / 6)
    assert bias.consistent.mean == pytest.approx(1 / 3)
    assert (bias.first_both.mean, bias.second_both.mean) == pytest.approx((1 / 3, 0))
    assert (bias.first_shown_wins.n, bias.first_shown_wins.unscored) == (3, 1)


def test_length_control_removes_the_planted_length_bias():
    """Equal quality, but A writes longer responses: its win rate is above ½, and at equal length it is not."""
    rng = np.random.default_rng(3)
    covered, plain_covered = [], []
    for _ in range(100):
        votes = judged(rng, 100, longer=0.7, position=0.0)
        simple = win_rate(votes.mean_N, votes.prompt_N)
        controlled = length_controlled_win_rate(votes.mean_N, votes.length_N, votes.prompt_N)
        covered.append(controlled.win_rate.low <= 0.5 <= controlled.win_rate.high)
        plain_covered.append(simple.low <= 0.5 <= simple.high)
        assert controlled.length.low > 0
    assert np.mean(covered) >= 0.9
    assert np.mean(plain_covered) < 0.5


def test_length_control_is_a_logistic_regression():
    votes = judged(np.random.default_rng(4), 100, longer=0.5)
    scale = math.sqrt(np.mean(votes.length_N**2))
    design_N2 = np.column_stack([np.ones(200), np.tanh(votes.length_N / scale)])
    model = sm.GLM(votes.mean_N, design_N2, family=sm.families.Binomial())
    theirs = model.fit(cov_type="cluster", cov_kwds={"groups": votes.prompt_N, "use_correction": False})
    controlled = length_controlled_win_rate(votes.mean_N, votes.length_N, votes.prompt_N)
    assert controlled.win_rate.mean == pytest.approx(sigmoid(theirs.params[0]))
    # the scores have ties: one more win and one more loss at equal length are added to the variance
    p = sigmoid(theirs.params[0])
    added = ((1 - p) ** 2 + p**2) * theirs.normalized_cov_params[0, 0] ** 2
    half_width = stats.t.ppf(0.975, 99) * math.sqrt(theirs.bse[0] ** 2 * 100 / 99 + added)
    assert controlled.win_rate.high == pytest.approx(sigmoid(theirs.params[0] + half_width))
    assert controlled.length.mean == pytest.approx(theirs.params[1])


def test_without_any_length_difference_length_control_changes_nothing():
    controlled = length_controlled_win_rate([1, 0, 1, 1], [0, 0, 0, 0], range(4))
    assert controlled.win_rate.mean == pytest.approx(0.75)
    assert math.isnan(controlled.length.mean)
    # ten ties: the variance of the win rate, .5/100, is that of the logit times (p(1 − p))² = 1/16
    ties = length_controlled_win_rate([0.5] * 10, [0] * 10, range(10))
    logit_width = stats.t.ppf(0.975, 9) * math.sqrt(0.5 / 100 * 16)
    assert ties.win_rate.high == pytest.approx(sigmoid(logit_width))


def penalised(score_N, design_NM) -> np.ndarray:
    """Posterior mode under independent normal priors of sd 3, by a general minimiser in float64."""
    score_N = np.asarray(score_N, dtype=float)

    def loss(coefficients_M):
        logit_N = design_NM @ coefficients_M
        return np.sum(np.logaddexp(0, logit_N) - score_N * logit_N) + np.sum(coefficients_M**2) / (2 * 3**2)

    return minimize(loss, np.zeros(design_NM.shape[1]), method="BFGS", options={"gtol": 1e-10}).x


def test_a_length_that_explains_everything_is_estimated_under_a_prior():
    scores, lengths = [1, 1, 0, 0], [5, 3, -2, -4]
    controlled = length_controlled_win_rate(scores, lengths, range(4))
    design_N2 = np.column_stack([np.ones(4), saturated(lengths)])
    mode = penalised(scores, design_N2)
    assert controlled.win_rate.mean == pytest.approx(sigmoid(mode[0]), abs=1e-6)
    assert controlled.length.mean == pytest.approx(mode[1], abs=1e-5)
    # Laplace: the inverse of H + 1/9 on the diagonal, with t quantiles on 3 degrees of freedom
    p_N = sigmoid(design_N2 @ mode)
    covariance = np.linalg.inv((design_N2 * (p_N * (1 - p_N))[:, None]).T @ design_N2 + np.eye(2) / 9)
    half_width = stats.t.ppf(0.975, 3) * math.sqrt(covariance[0, 0])
    assert controlled.win_rate.high == pytest.approx(sigmoid(mode[0] + half_width), abs=1e-6)
    # the judge prefers A twice and B twice: it is the length that decides
    assert controlled.problem == "" and controlled.note.startswith("the lengths predict the preferred side without an")


def test_a_judge_that_always_prefers_one_side_has_a_number_with_a_note():
    """40 wins of 40 at varying lengths: near 1, but the interval says how little is known."""
    controlled = length_controlled_win_rate([1] * 40, np.linspace(-3, 3, 40), range(40))
    assert 0.95 < controlled.win_rate.mean < 1 and controlled.win_rate.low < 0.95
    assert controlled.note.startswith("the judge prefers one side without an exception")
    assert not length_controlled_win_rate([1] * 20 + [0] + [1] * 19, np.linspace(-3, 3, 40), range(40)).note


def test_excess_preference_by_hand():
    # Favoured is A, A, B, nobody. Judge less truth for the favoured one: 1 − ½, 1 − 0, 1 − 1 = .5, 1, 0: mean ½.
    estimate = excess_preference([1, 1, 0, 1], [0.5, 0, 0, 0], [1, 1, 0, None], range(4))
    assert estimate.mean == pytest.approx(0.5)
    assert estimate.n == 3


def test_win_rates_with_and_without_ties():
    assert win_rate([1, 1, 0, 1], [0, 0, 1, 1]) == clustered_rate([1, 1, 0, 1], [0, 0, 1, 1])
    # Two ties of two: mean ½, no variance of its own, added (¼ + ¼)/2² = 1/8; t_1 = 12.7: cut to [0, 1].
    tied = win_rate([0.5, 0.5], range(2))
    assert (tied.mean, tied.low, tied.high) == (0.5, 0.0, 1.0)
    many = win_rate([0.5] * 100, range(100))
    assert many.high - 0.5 == pytest.approx(stats.t.ppf(0.975, 99) * math.sqrt(0.5) / 100)
    assert win_rate([1, None, 0.5], range(3)).unscored == 1
    with pytest.raises(NumericError, match="between 0 and 1"):
        win_rate([2], [0])


@pytest.mark.parametrize("ties", [0.05, 0.5, 0.9])
def test_the_interval_of_a_win_rate_with_ties_covers(ties: float):
    rng = np.random.default_rng(6)
    truth = ties / 2 + (1 - ties) * 0.7
    model_copies = []
    for _ in range(400):
        score_N = np.where(rng.random(30) < ties, 0.5, rng.random(30) < 0.7)
        estimate = win_rate(score_N, range(30))
        model_copies.append(estimate.low <= truth <= estimate.high)
    assert np.mean(model_copies) >= 0.93


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(NumericError, match="different lengths"):
        position_bias([1, 0], [1], range(2))
