"""Agents on the same tasks: exact tests by enumeration, clusters of siblings, and what few tasks can show."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from rlhf_lab.core.errors import NumericError
from rlhf_lab.statistics.inference import at_level, mcnemar_exact, paired_difference
from rlhf_lab.statistics.paired_tasks import (
    compare_agents,
    mcnemar_detectable,
    mcnemar_power,
    paired_by_task,
    sign_flip_exact,
)


def single(outcomes: list[int]) -> dict[int, list[float]]:
    return {task: [float(value)] for task, value in enumerate(outcomes)}


def test_sixteen_points_on_twelve_tasks_are_two_tasks():
    # 2 of 12 tasks are solved by the second agent alone: +16.7 points, and two coins fall alike half of the time
    comparison = paired_by_task(single([1] * 5 + [0] * 7), single([1] * 7 + [0] * 5), {})
    assert comparison.difference.mean == pytest.approx(2 / 12)
    assert comparison.p_value == pytest.approx(0.5)
    assert comparison.test == "exact McNemar test, 2 prompts only the second, 0 only the first"
    # six discordant tasks of twelve are needed: Σ_{k ≥ 6} C(12, k) g^k (1 − g)^(12 − k) is .8 at g = .578
    assert mcnemar_exact(6, 0) == pytest.approx(2 / 64)
    assert mcnemar_exact(5, 0) > 0.05
    assert comparison.minimum_detectable_effect == pytest.approx(0.578, abs=5e-4)
    assert sum(math.comb(12, k) * 0.578**k * 0.422 ** (12 - k) for k in range(6, 13)) == pytest.approx(0.8, abs=1e-3)
    assert mcnemar_power(12, 0.17, 0.0) < 0.01
    assert mcnemar_power(12, 0.08, 0.0) < 0.001


def test_power_is_that_of_every_outcome():
    # all (b, c) with b + c ≤ 7, each with its multinomial probability
    gain, loss, n = 0.55, 0.1, 7
    expected = 0.0
    for b, c in product(range(n + 1), repeat=2):
        if b + c <= n and mcnemar_exact(b, c) <= 0.05:
            ways = math.comb(n, b) * math.comb(n - b, c)
            expected += ways * gain**b * loss**c * (1 - gain - loss) ** (n - b - c)
    assert mcnemar_power(n, gain, loss) == pytest.approx(expected, rel=1e-12)
    # without losses: P(Binomial(7, .9) ≥ 6) = 7·.9⁶·.1 + .9⁷
    assert mcnemar_power(7, 0.9, 0.0) == pytest.approx(7 * 0.9**6 * 0.1 + 0.9**7)
    assert mcnemar_power(5, 1.0, 0.0) == 0.0
    assert mcnemar_power(100, 0.0, 0.0) == 0.0


def test_the_detectable_effect_has_its_power():
    for n, loss in ((12, 0.0), (36, 0.0), (36, 0.1), (200, 0.05)):
        effect = mcnemar_detectable(n, loss)
        assert mcnemar_power(n, loss + effect, loss) == pytest.approx(0.8, abs=1e-9)
    assert mcnemar_detectable(36) == pytest.approx(0.211, abs=5e-4)
    assert mcnemar_detectable(36, 0.1) > mcnemar_detectable(36)
    assert mcnemar_detectable(5) == math.inf
    assert mcnemar_detectable(0) == math.inf


def test_impossible_shares_are_refused():
    for gain, loss, n in ((0.7, 0.5, 10), (-0.1, 0.0, 10), (0.1, 0.1, 0)):
        with pytest.raises(NumericError, match="fractions of tasks"):
            mcnemar_power(n, gain, loss)
    with pytest.raises(NumericError, match="at most 20"):
        sign_flip_exact(np.ones(21))


def test_sign_flips_on_the_page():
    # differences 1, 2, 3: |±1 ± 2 ± 3| is 6 for two of eight signs
    assert sign_flip_exact(np.array([1.0, 2.0, 3.0])) == pytest.approx(2 / 8)
    # −1, 2, 3: the sum is 4, reached or passed by ±(1+2+3) and ±(−1+2+3)
    assert sign_flip_exact(np.array([-1.0, 2.0, 3.0])) == pytest.approx(4 / 8)
    assert sign_flip_exact(np.zeros(3)) == 1.0


@pytest.mark.parametrize("b", range(5))
@pytest.mark.parametrize("c", range(5))
def test_sign_flips_of_single_outcomes_are_mcnemar(b, c):
    differences = np.array([1.0] * b + [-1.0] * c + [0.0] * 3)
    assert sign_flip_exact(differences) == pytest.approx(mcnemar_exact(b, c), abs=1e-12)


def test_siblings_are_one_unit():
    # four templates with five siblings each, all won by the second: that is 4 units, not 20 tasks
    template_of = {(template, sibling): template for template in range(4) for sibling in range(5)}
    lost, won = {task: [0.0] for task in template_of}, {task: [1.0] for task in template_of}
    comparison = paired_by_task(lost, won, template_of)
    assert comparison.p_value == pytest.approx(2 / 16)
    assert comparison.difference.clusters == 4
    assert comparison.test == "exact sign-flip test over 4 templates"
    assert paired_by_task(lost, won, {}).p_value == pytest.approx(2 / 2**20)


def test_many_templates_use_the_clustered_t_test():
    rng = np.random.default_rng(0)
    template_of = {(template, sibling): template for template in range(30) for sibling in range(3)}
    a = {task: list(rng.integers(0, 2, 2).astype(float)) for task in template_of}
    b = {task: list(rng.integers(0, 2, 2).astype(float)) for task in template_of}
    comparison = paired_by_task(a, b, template_of)
    templates = np.array(list(template_of.values()))
    expected = paired_difference([np.mean(b[t]) for t in template_of], [np.mean(a[t]) for t in template_of], templates)
    assert comparison == expected
    # equally large clusters: the t test of the 30 template means
    means = [np.mean([np.mean(b[t, s]) - np.mean(a[t, s]) for s in range(3)]) for t in range(30)]
    assert comparison.p_value == pytest.approx(stats.ttest_1samp(means, 0).pvalue)


def test_a_family_of_agents():
    outcomes = {"oracle": single([1] * 12), "react": single([1] * 5 + [0] * 7), "refuse": single([1] * 1 + [0] * 11)}
    first, second, third = compare_agents(outcomes, {})
    assert (first.first, first.second, third.first, third.second) == ("oracle", "react", "react", "refuse")
    # p = 2·½⁷, 2·½¹¹, 2·½⁴; Holm: three times the least, twice the next, once the last
    assert second.adjusted_p == pytest.approx(3 * 2 / 2**11)
    assert first.adjusted_p == pytest.approx(2 * 2 / 2**7)
    assert third.adjusted_p == pytest.approx(2 / 2**4)
    assert first.adjusted_p <= 0.05 < third.adjusted_p
    # at 5 % / 3 McNemar needs 7 discordant tasks, all in favour of one agent: 2·½⁷ = .016
    assert stats.binom.sf(6, 12, second.comparison.minimum_detectable_effect) == pytest.approx(0.8)


def test_a_family_with_several_attempts_per_task():
    rng = np.random.default_rng(0)
    outcomes = {name: {task: rng.integers(0, 2, 3).tolist() for task in range(30)} for name in "abc"}
    for found in compare_agents(outcomes, {}):
        alone = paired_by_task(outcomes[found.first], outcomes[found.second], {})
        assert found.comparison == at_level(alone, 0.05 / 3)
        assert found.comparison.minimum_detectable_effect > alone.minimum_detectable_effect


def test_tasks_of_one_agent_alone_do_not_count():
    comparison = paired_by_task({1: [1.0], 2: [0.0], 3: []}, {2: [1.0], 3: [1.0], 4: [0.0]}, {})
    assert comparison.difference.n == 1
    assert math.isnan(comparison.p_value)
    assert paired_by_task({}, {}, {}).difference.n == 0


def test_under_no_difference_few_templates_are_rarely_called_different():
    # 8 templates of 10 siblings; each template has its own probability, the same for both agents
    rng = np.random.default_rng(1)
    template_of = {(template, sibling): template for template in range(8) for sibling in range(10)}
    rejected = 0
    for _ in range(300):
        fraction = rng.beta(0.5, 0.5, 8)
        a = {task: [float(rng.random() < fraction[task[0]])] for task in template_of}
        b = {task: [float(rng.random() < fraction[task[0]])] for task in template_of}
        rejected += paired_by_task(a, b, template_of).p_value <= 0.05
    # .05 · 300 = 15 with a standard deviation of 3.8
    assert rejected <= 15 + 3 * 3.8
