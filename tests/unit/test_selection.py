"""Choosing pairs: folds keep prompts together, fractions are nested and of equal size, controls match their target."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from support import checked, planned

from rlhf_lab.algorithms.pair_selection.selection import (
    filter_responses,
    length_matched,
    prompt_folds,
    random_subset,
    top_fraction,
)
from rlhf_lab.algorithms.pair_selection.settings import CrossFit, Selection
from rlhf_lab.algorithms.policy_gradient.settings import GRPO, PPO
from rlhf_lab.algorithms.preference.settings import DPO
from rlhf_lab.algorithms.reward_models.settings import RewardModel
from rlhf_lab.core.errors import ConfigError

ONE_FOLD = np.zeros(6, dtype=np.int64)


def test_folds_never_share_a_prompt_and_are_about_equally_large():
    rng = np.random.default_rng(0)
    prompts = [f"prompt {i}" for i in rng.zipf(1.6, 2000) % 300]
    fold_N = prompt_folds(prompts, 5, seed=1)
    for prompt in set(prompts):
        assert len({int(f) for f, p in zip(fold_N, prompts, strict=True) if p == prompt}) == 1
    largest = max(np.bincount(np.unique(prompts, return_inverse=True)[1]))
    assert np.bincount(fold_N, minlength=5).min() >= 2000 / 5 - largest
    assert (prompt_folds(prompts, 5, seed=1) == fold_N).all()
    assert (prompt_folds(prompts, 5, seed=2) != fold_N).any()
    assert prompt_folds(["a", "b"], 2, seed=0).tolist() in ([0, 1], [1, 0])


def test_the_top_share_by_hand_counts_folds_equally():
    values = np.array([0.1, 3.0, 2.0, 0.5, 9.0, 0.2])
    assert top_fraction(values, 0.5, ONE_FOLD).tolist() == [1, 2, 4]
    assert top_fraction(values, 0.01, ONE_FOLD).tolist() == [4]
    # The second fold's model has margins ten times as large; by value it would have all positions.
    values = np.array([0.1, 0.3, 0.2, 0.4, 1.0, 3.0, 2.0, 4.0])
    fold_N = np.repeat([0, 1], 4)
    assert top_fraction(values, 0.5, fold_N).tolist() == [1, 3, 5, 7]


@pytest.mark.parametrize("how", ["random", "top"])
def test_smaller_shares_lie_within_larger_ones_and_have_their_size(how):
    rng = np.random.default_rng(3)
    values, fold_N = rng.normal(size=997), rng.integers(0, 5, 997)
    before: set[int] = set()
    for keep in (0.1, 0.25, 0.5, 0.75, 1.0):
        size = round(keep * 997)
        found = random_subset(997, size, seed=7) if how == "random" else top_fraction(values, keep, fold_N)
        assert len(found) == len(set(found.tolist())) == size
        assert (np.diff(found) > 0).all()
        assert before <= set(found.tolist())
        before = set(found.tolist())
    assert not np.array_equal(random_subset(997, 100, seed=7), random_subset(997, 100, seed=8))


def test_a_length_matched_control_has_the_lengths_of_what_it_controls():
    """Sure pairs have longer differences; a random half does not, the matched one does, with other pairs in it."""
    rng = np.random.default_rng(0)
    length = np.round(rng.normal(3, 12, 4000))
    margin = np.abs(length) / 12 + rng.normal(0, 0.7, 4000)
    target = top_fraction(margin, 0.25, np.zeros(4000, dtype=np.int64))
    matched = length_matched(length, target, seed=0)
    assert len(matched) == len(set(matched.tolist())) == len(target)
    assert stats.ks_2samp(length[matched], length[target]).pvalue > 0.1
    random = random_subset(4000, len(target), seed=0)
    assert stats.ks_2samp(length[random], length[target]).pvalue < 1e-6
    assert len(set(matched.tolist()) & set(target.tolist())) < 0.8 * len(target)


@pytest.mark.parametrize(
    ("how", "size", "kept"),
    [("best", 2, [1, 4]), ("best_worst", 2, [0, 1]), ("best_worst", 3, [0, 1, 4]), ("best", 1, [1])],
)
def test_a_rollout_filter_by_hand(how, size, kept):
    rewards = np.array([-2.0, 3.0, 0.0, np.nan, 1.0])
    assert filter_responses(rewards, size, how, np.random.default_rng(0)).tolist() == kept


def test_a_random_rollout_filter_keeps_the_best_and_draws_the_rest_evenly():
    rng, rewards = np.random.default_rng(0), np.array([1.0, 5.0, 2.0, 4.0, 3.0])
    selected = [filter_responses(rewards, 2, "best_random", rng).tolist() for _ in range(400)]
    assert all(1 in kept and len(set(kept)) == 2 for kept in selected)
    others = np.bincount([i for kept in selected for i in kept if i != 1], minlength=5)
    assert others[1] == 0 and others[[0, 2, 3, 4]].min() > 70


def test_unscored_replies_fill_up_only_where_they_must():
    rng = np.random.default_rng(0)
    assert filter_responses(np.array([np.nan, 1.0, np.nan]), 2, "best", rng).tolist() == [0, 1]
    assert filter_responses(np.array([np.nan, 1.0, 2.0]), 2, "best_worst", rng).tolist() == [1, 2]


def test_a_share_of_the_pairs_needs_a_way_to_choose_them():
    """Left to the default, not where a sweep has all pairs among its levels."""
    fraction = "algorithm.selection.keep=0.5"
    with pytest.raises(
        ConfigError, match=r"algorithm.selection.keep=0.5 selects nothing without selection.by; set selection"
    ):
        checked("reward_model", fraction)
    with pytest.raises(ConfigError, match=r"stage reward_model .* selects nothing without selection.by"):
        planned("dpo", f"stages.reward_model.{fraction}")
    everything = planned("reward_model", fraction, "algorithm.selection.by=all")
    assert everything.settings_key == planned("reward_model").settings_key


def test_what_decides_nothing_is_no_other_selection():
    """All pairs are all pairs, so both levels of a sweep are one stage."""
    assert Selection(by="all", keep=0.25, cycle=2, source="in_sample") == Selection()
    assert Selection(by="random", keep=0.5, cycle=2) == Selection(by="random", keep=0.5)
    assert Selection(by="margin", keep=0.5, cycle=2) != Selection(by="margin", keep=0.5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (lambda: Selection(keep=0.25), "keep=0.25 selects nothing without selection.by"),
        (lambda: RewardModel(selection=Selection(by="difficulty")), "algorithm=dpo"),
        (lambda: DPO(loss="ipo", selection=Selection(by="difficulty")), "loss=sigmoid"),
        (lambda: CrossFit(selection=Selection(by="agreement", keep=0.5)), "labels of a fold"),
        (lambda: CrossFit(selection=Selection(by="margin", source="in_sample")), "labels of a fold"),
        (lambda: GRPO(filter_pool=8), "filter_pool=8"),
        (lambda: GRPO(rollout_filter="best_worst", filter_pool=4), "above group_size=4"),
        (lambda: PPO(rollout_filter="best_worst", filter_pool=4), "group_size=2"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        settings()
