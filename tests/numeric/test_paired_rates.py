"""Rule of three, McNemar by prompt, margins of non-inferiority, and how many prompts decide: arithmetic on the page."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from rlhf_lab.core.errors import NumericError
from rlhf_lab.statistics.paired_rates import margin_p_values, paired_by_prompt, prompts_to_find, rule_of_three


def single(outcomes: list[int]) -> dict[int, list[float]]:
    return {prompt: [float(value)] for prompt, value in enumerate(outcomes)}


def test_rule_of_three():
    # (1 − p)^n = .05: of 40 trials without the event, p = 1 − .05^(1/40) = .0722, and 3/40 = .075
    assert rule_of_three(40) == pytest.approx(0.0722, abs=5e-5)
    assert rule_of_three(1) == pytest.approx(0.95)
    assert rule_of_three(1000) == pytest.approx(3 / 1000, rel=0.01)
    with pytest.raises(NumericError, match="at least one trial"):
        rule_of_three(0)


def test_mcnemar_where_every_prompt_has_one_reply():
    # 8 prompts only the second refuses, 1 only the first: p = 2·(C(9,0) + C(9,1))/2⁹ = 20/512
    first = single([0] * 8 + [1] + [1] * 11)
    second = single([1] * 8 + [0] + [1] * 11)
    comparison = paired_by_prompt(first, second)
    assert comparison.difference.mean == pytest.approx(7 / 20)
    assert comparison.p_value == pytest.approx(20 / 512)
    assert comparison.test == "exact McNemar test, 8 prompts only the second, 1 only the first"


def test_several_replies_to_a_prompt_are_averaged_first():
    first = {p: [0.0, 0.0] for p in range(6)}
    second = {p: [1.0, 0.0] if p < 4 else [0.0, 0.0] for p in range(6)}
    comparison = paired_by_prompt(first, second)
    differences = np.array([0.5] * 4 + [0.0] * 2)
    assert comparison.difference.mean == pytest.approx(1 / 3)
    assert comparison.difference.clusters == 6
    assert comparison.standard_error == pytest.approx(differences.std(ddof=1) / math.sqrt(6))


def test_prompts_of_one_side_alone_do_not_count():
    comparison = paired_by_prompt({"a": [1.0], "b": [0.0], "c": [1.0]}, {"b": [1.0], "c": [1.0], "d": [0.0]})
    assert comparison.difference.n == 2


def test_a_margin_is_tested_in_both_directions():
    rng = np.random.default_rng(0)
    first = {p: [value] for p, value in enumerate(rng.normal(0, 1, 50))}
    second = {p: [first[p][0] + shift] for p, shift in enumerate(rng.normal(-0.1, 0.3, 50))}
    comparison = paired_by_prompt(first, second)
    gap, error = comparison.difference.mean, comparison.standard_error
    not_worse, worse = margin_p_values(comparison, 0.2)
    assert not_worse == pytest.approx(2 * stats.t.sf((gap + 0.2) / error, 49))
    assert worse == pytest.approx(min(1.0, 2 * stats.t.cdf((gap + 0.2) / error, 49)))
    # at 5 % the first is significant exactly when the 95 % interval lies above −margin
    assert (not_worse <= 0.05) == (comparison.difference.low >= -0.2)
    assert (margin_p_values(comparison, 0.0)[1] <= 0.05) == (comparison.difference.high <= 0)


def test_sides_that_are_equal_everywhere_are_not_worse():
    comparison = paired_by_prompt(single([1, 0, 1]), single([1, 0, 1]))
    assert margin_p_values(comparison, 0.05) == (0.0, 1.0)
    assert margin_p_values(comparison, 0.0) == (1.0, 1.0)


def test_four_times_the_prompts_find_half_the_effect():
    comparison = paired_by_prompt(single([0, 1] * 20), single([1, 0, 0, 1] * 10))
    effect = comparison.minimum_detectable_effect
    assert prompts_to_find(comparison, effect / 2) == pytest.approx(4 * 40, abs=1)
    assert prompts_to_find(comparison, 0.0) == math.inf


def test_prompts_that_share_errors_are_one_cluster():
    # Four tasks of template x all fall from 1 to 0, four of y and four of z stay: the mean change is −1/3. The sums by
    # template are −4, 0, 0; their deviations from the mean (−4/3) are −8/3, 4/3, 4/3 with the sum of squares 32/3.
    # CR1: SE = √(3/2 · 32/3)/12 = 4/12 = 1/3, so t = −1 on 2 degrees of freedom and p = 2·.2113 = .4226.
    before = single([1] * 12)
    after = single([0] * 4 + [1] * 8)
    template = {task: "xyz"[task // 4] for task in range(12)}
    by_template = paired_by_prompt(before, after, template)
    assert by_template.difference.mean == pytest.approx(-1 / 3)
    assert (by_template.difference.n, by_template.difference.clusters) == (12, 3)
    assert by_template.standard_error == pytest.approx(1 / 3)
    assert by_template.p_value == pytest.approx(0.4226, abs=5e-5)
    assert "McNemar" not in by_template.test
    # as independent tasks: four discordant pairs, all one way, p = 2/2⁴
    assert paired_by_prompt(before, after).p_value == pytest.approx(0.125)
    alone = {task: f"template {task}" for task in range(12)}
    assert paired_by_prompt(before, after, alone).p_value == pytest.approx(0.125)
