"""Probes of a reward model: ridge regression by hand, planted attributes, and a score whose ingredients are known."""

from __future__ import annotations

import numpy as np
import pytest

from rlhf_lab.evaluations.rm_probe import effect_report, probe_report
from rlhf_lab.statistics.probe import PENALTIES, _ridge, cross_fitted


def data(rows: int = 300, hidden: int = 6):
    """Features, a prompt per pair of rows, and noise."""
    rng = np.random.default_rng(0)
    features_NH = rng.normal(size=(rows, hidden)) * np.arange(1, hidden + 1)
    return features_NH, np.arange(rows) // 2, rng.normal(size=rows)


def test_a_fit_is_that_of_the_normal_equations():
    """w = (ZᵀZ + λN)⁻¹Zᵀ(y − ȳ) for standardised Z, with the λ of the smallest N·RSS/(N − df)²."""
    x, _, noise = data()
    y = x[:, 0] - 0.5 * x[:, 2] + 3 * noise + 7
    z = (x - x.mean(0)) / x.std(0)
    rows = len(x)
    best = (np.inf, None)
    for penalty in PENALTIES:
        gram = z.T @ z + penalty * rows * np.eye(z.shape[1])
        weight = np.linalg.solve(gram, z.T @ (y - y.mean()))
        freedom = np.trace(z @ np.linalg.solve(gram, z.T)) + 1
        error = ((y - y.mean() - z @ weight) ** 2).sum() / (1 - freedom / rows) ** 2
        best = min(best, (error, weight), key=lambda each: each[0])
    expected = y.mean() + z @ best[1]
    assert np.allclose(_ridge(x, y[:, None], x)[:, 0], expected, rtol=1e-9)


def test_predictions_come_from_other_prompts():
    """A target that is constant within a prompt and random between prompts cannot be predicted from its number."""
    rng = np.random.default_rng(1)
    prompts = np.repeat(np.arange(40), 5)
    identity_NH = np.eye(40)[prompts]
    target_N1 = rng.normal(size=40)[prompts][:, None]
    assert np.corrcoef(_ridge(identity_NH, target_N1, identity_NH)[:, 0], target_N1[:, 0])[0, 1] > 0.9
    assert np.corrcoef(cross_fitted(identity_NH, target_N1, prompts, 5)[:, 0], target_N1[:, 0])[0, 1] < 0.2


def test_an_attribute_is_found_where_it_is_represented():
    x, prompts, noise = data()
    attributes = {"gold": x[:, 0] + 0.1 * noise, "absent": noise}
    found = probe_report({"probe": x, "probe_before": x[:, 1:]}, attributes, list(map(str, prompts)), 5)
    assert found["probe/gold"].low > 0.98
    assert abs(found["probe_before/gold"].mean) < 0.2 and abs(found["probe/absent"].mean) < 0.2


def test_an_effect_is_that_at_equal_gold():
    """score = gold + 2·length/sd(length), and length = gold + noise: gold's own effect contains that of length."""
    rng = np.random.default_rng(0)
    prompts = np.repeat(np.arange(500), 4)
    gold = rng.normal(size=2000)
    length = 3 * (gold + rng.normal(size=2000))
    irrelevant = gold + rng.normal(size=2000)
    score = gold + 2 * length / length.std()
    found = effect_report(score, {"gold": gold, "length": length, "irrelevant": irrelevant}, list(prompts))
    # Least squares within prompts: Σ gold·score / Σ gold², of deviations from the means of the prompts.
    gold_PR, score_PR = (x.reshape(500, 4) - x.reshape(500, 4).mean(1, keepdims=True) for x in (gold, score))
    slope = (gold_PR * score_PR).sum() / (gold_PR**2).sum()
    assert found["effect/gold"].mean == pytest.approx(slope * gold.std() / score.std(), rel=1e-9)
    assert slope == pytest.approx(1 + 6 / length.std(), rel=0.05)  # d score / d gold, with length = 3·gold + noise
    assert found["effect/length"].mean == pytest.approx(2 / score.std(), rel=1e-6)
    assert found["effect/irrelevant"].low < 0 < found["effect/irrelevant"].high
