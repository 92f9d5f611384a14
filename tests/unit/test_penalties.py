"""Penalties of `algorithms/policy_gradient/shaping.py` as parts of the score, and what `monitoring/silence.py` says."""

from __future__ import annotations

import numpy as np

from rlhf_lab.algorithms.policy_gradient.rollouts import group_metrics, penalty_means
from rlhf_lab.algorithms.policy_gradient.settings import GRPO
from rlhf_lab.algorithms.policy_gradient.shaping import RewardShaper
from rlhf_lab.core.episodes import Episode, Segment, Task
from rlhf_lab.monitoring.silence import no_reward, remarks
from rlhf_lab.sampling.experience import Group


def test_the_score_is_the_reward_less_its_penalties():
    """Limit 10, last 4 overlong: 8 tokens cost (8 − 6)/4 = .5, 10 cost 1; a reply that did not end costs 1 more."""
    shaper = RewardShaper(GRPO(missing_eos_penalty=1.0, overlong_tokens=4), max_new_tokens=10)
    lengths, ended = [5, 8, 10], [True, True, False]
    penalties = shaper.penalties(lengths, ended)
    assert {name: values.tolist() for name, values in penalties.items()} == {
        "missing_eos": [0, 0, 1],
        "overlong": [0, 0.5, 1],
    }
    assert shaper(np.full(3, 2.0), lengths, ended).tolist() == [2, 1.5, 0]


def test_a_constant_reward_with_penalties_is_said_to_train_on_these():
    rows = [{"unscored": 0.0, "reward_sd": 0.0, "score_sd": 0.4, "penalty/missing_eos": 0.2, "ended": 0.8}]
    assert "trained on penalties alone (penalty/missing_eos" in str(no_reward(rows))
    rows[0] |= {"score_sd": 0.0}
    assert str(no_reward(rows)).startswith("no signal")


def group(rewards: list[float], ended: list[bool]) -> Group:
    """Episodes of two tokens, scored with the penalty of 1 for a missing EOS."""
    task = Task("Q")
    episodes = [Episode(task, "Q", "a", [1], (Segment([2, 3], sampled=True),), end) for end in ended]
    scores = SHAPER(np.array(rewards), [2] * len(ended), ended)
    return Group(task, episodes, rewards, scores.tolist())


SHAPER = RewardShaper(GRPO(missing_eos_penalty=1.0), max_new_tokens=10)


def test_a_group_that_only_penalties_tell_apart_trains_but_is_redrawn():
    """Rewards 2, 2; scores 2 and 2 − 1 = 1: their difference is an advantage, though the reward prefers no reply."""
    constant = group([2.0, 2.0], [True, False])
    assert not constant.wasted and constant.undecided
    metrics = group_metrics([constant]) | penalty_means(SHAPER, [constant])
    assert (metrics["wasted_groups"], metrics["score_sd"], metrics["penalty/missing_eos"]) == (0, 0.5, 0.5)
    equal = group([2.0, 2.0], [True, True])
    assert equal.wasted and equal.undecided
    differing = group([2.0, 3.0], [True, True])
    assert not differing.wasted and not differing.undecided


def test_rewards_that_a_penalty_evens_out_are_wasted():
    """3 − 1 = 2 − 0: advantages are 0."""
    assert group([3.0, 2.0], [False, True]).wasted


def test_an_unscored_reply_has_no_penalty():
    """The mean is over the scored reply, which ended; NaN less 1 is no score."""
    half = group([2.0, np.nan], [True, False])
    assert penalty_means(SHAPER, [half]) == {"penalty/missing_eos": 0.0}
    none = group([np.nan, np.nan], [True, False])
    assert none.wasted and penalty_means(SHAPER, [none]) == {}


def test_a_reward_that_scores_nothing_is_the_one_remark():
    rows = [{"unscored": 1.0, "reward_sd": None, "score_sd": None, "ended": 0.5}]
    (remark,) = remarks(GRPO, rows, [], {"wasted_groups": 1.0})
    assert "scored none of the sampled replies, so nothing was trained, by penalties neither" in remark
