"""Correlations and slopes, over all responses and within prompts: planted coefficients, coverage, unscored rows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlhf_lab.statistics.association import pooled_products, within_prompts

PROMPTS = np.repeat(np.arange(400), 4)


@pytest.fixture
def world():
    rng = np.random.default_rng(5)
    gold, offset = rng.normal(size=1600), rng.normal(0, 5, 400)[PROMPTS]
    words = np.clip(30 + 8 * gold + rng.normal(0, 15, 1600), 1, None) / 10
    return gold, offset, words


def test_a_planted_length_bias_is_recovered(world):
    """r = gold + .3 · words/10 + a prompt's offset: the slope given gold is .3 and the partial correlation 1."""
    gold, offset, words = world
    for bias in (0.3, -0.3):
        moves = within_prompts({"reward": gold + bias * words + offset, "gold": gold, "words": words}, PROMPTS)
        assert moves.slope("reward", "words", "gold").mean == pytest.approx(bias)
        assert moves.correlation("reward", "words", "gold").mean == pytest.approx(math.copysign(1.0, bias))
    none = within_prompts({"reward": gold + offset, "gold": gold, "words": words}, PROMPTS)
    assert none.correlation("reward", "words").low > 0.2, "gold and length are related here"
    assert none.slope("reward", "words", "gold").mean == pytest.approx(0.0, abs=1e-9)
    assert math.isnan(none.correlation("reward", "words", "gold").mean), "nothing is left of a reward that is gold"


def test_prompt_offsets_count_overall_and_not_within(world):
    gold, offset, _ = world
    columns = {"reward": gold + offset, "gold": gold}
    full = pooled_products(columns, PROMPTS).correlation("reward", "gold")
    assert full.mean == pytest.approx(np.corrcoef(gold + offset, gold)[0, 1])
    assert full.low < full.mean < full.high < 0.5
    assert within_prompts(columns, PROMPTS).correlation("reward", "gold").mean == pytest.approx(1.0)


def test_spearman_sees_order_only(world):
    gold, _, _ = world
    columns = {"reward": np.exp(3 * gold), "gold": gold}
    assert pooled_products(columns, PROMPTS, ranks=True).correlation("reward", "gold").mean == pytest.approx(1.0)
    assert pooled_products(columns, PROMPTS).correlation("reward", "gold").mean < 0.7


def test_the_interval_covers_a_known_correlation():
    """ρ = .5 within prompts; 95 % intervals of 100 samples of 60 prompts cover it in 86 cases or more."""
    covered = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        one, noise = rng.normal(size=(2, 240))
        found = within_prompts({"a": one, "b": 0.5 * one + 0.75**0.5 * noise}, np.repeat(np.arange(60), 4))
        interval = found.correlation("a", "b")
        covered += interval.low <= 0.5 <= interval.high
    assert covered >= 86


def test_unscored_replies_are_left_out_of_both_columns(world):
    gold, offset, _ = world
    holes = np.where(np.arange(1600) % 5 == 0, np.nan, 2 * gold + offset)
    found = within_prompts({"gold": gold, "reward": holes}, PROMPTS).correlation("gold", "reward")
    assert (found.n, found.unscored) == (1280, 320)
    assert found.mean == pytest.approx(1.0)
    nothing = within_prompts({"gold": [math.nan], "reward": [1.0]}, [0]).correlation("gold", "reward")
    assert nothing.n == 0
    assert math.isnan(nothing.mean)
