"""From reward to score: each switch does what it says, by hand; what runs remark on penalties and groups."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from rlhf_lab.algorithms.policy_gradient.rollouts import Rollouts, group_metrics, penalty_means
from rlhf_lab.algorithms.policy_gradient.settings import GRPO, PPO
from rlhf_lab.algorithms.policy_gradient.shaping import RewardShaper
from rlhf_lab.core.episodes import Episode, Segment, Task
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.monitoring.silence import no_reward, remarks
from rlhf_lab.sampling.experience import EpisodeGroup

REWARDS = np.array([1.0, -3.0, 2.0, np.nan])
LENGTHS, ENDED = [5, 10, 9, 3], [True, False, True, True]


def shaped(**settings) -> list[float]:
    return RewardShaper(PPO(**settings), max_new_tokens=10)(REWARDS, LENGTHS, ENDED).tolist()


def test_penalties_by_hand():
    assert shaped(missing_eos_penalty=0.0)[:3] == [1, -3, 2]
    assert shaped(missing_eos_penalty=1.5)[:3] == [1, -4.5, 2]
    assert np.isnan(shaped()[3])
    assert shaped(reward_clip=1.5, missing_eos_penalty=1.0)[:3] == [1, -2.5, 1.5]
    # Four tokens before the limit of 10: nothing up to 6, then a quarter per token.
    assert shaped(overlong_tokens=4, missing_eos_penalty=0.0)[:3] == [1, -4, 1.25]
    penalties = RewardShaper(PPO(overlong_tokens=4), max_new_tokens=10).penalties(LENGTHS, ENDED)
    assert {name: values.tolist() for name, values in penalties.items()} == {
        "missing_eos": [0, 1, 0, 0],
        "overlong": [0, 1, 0.75, 0],
    }


def test_the_running_scale_is_that_of_all_scores_seen():
    shaper = RewardShaper(PPO(reward_scaling="running_sd", missing_eos_penalty=0.0), 10)
    rng = np.random.default_rng(0)
    batches = [rng.normal(5, 3, size) for size in (7, 1, 40)]
    for batch in batches:
        shaper.observe(np.append(batch, np.nan))
    assert shaper.sd == pytest.approx(np.concatenate(batches).std(ddof=1))
    assert shaper(np.array([6.0]), [1], [True])[0] == pytest.approx(6 / shaper.sd)
    other = RewardShaper(shaper.settings, 10)
    other.load_state_dict(shaper.state_dict())
    assert other.sd == shaper.sd


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"advantage": "grpo"}, "algorithm=grpo"),
        ({"batch_size": 24}, "does not divide"),
        ({"epochs": 1.5}, "must be an integer"),
        ({"kl_controller": "adaptive", "beta": 0.0}, "cannot leave beta=0"),
        (
            {"kl_controller": "adaptive", "prompts_per_iteration": 500, "batch_size": 100, "kl_horizon": 100.0},
            "lets beta fall to 0 or below after the 500 responses",
        ),
        ({"critic": "shared"}, "critic_warmup=0"),
        ({"policy_loss": "gspo", "aggregation": "token_mean"}, "sequence_mean"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        PPO(**settings)


def test_remarks_on_rewards_that_train_on_nothing_or_on_penalties_only():
    rows = [{"unscored": 0.0, "reward_sd": 0.0, "score_sd": 0.4, "penalty/missing_eos": 0.2, "ended": 0.8}]
    assert "trained on penalties only (penalty/missing_eos" in str(no_reward(rows))
    rows[0] |= {"score_sd": 0.0}
    assert str(no_reward(rows)).startswith("no signal")
    rows = [{"unscored": 1.0, "reward_sd": None, "score_sd": None, "ended": 0.5}]
    (note,) = remarks(GRPO, rows, [], {"wasted_groups": 1.0})
    assert "scored none of the sampled responses, so nothing was trained, not even on penalties" in note


def group(rewards: list[float], finished: list[bool]) -> EpisodeGroup:
    """Episodes of two tokens, scored with the penalty of 1 for a missing EOS."""
    task = Task("Q")
    episodes = [Episode(task, "Q", "a", [1], (Segment([2, 3], sampled=True),), end) for end in finished]
    scores = SHAPER(np.array(rewards), [2] * len(finished), finished)
    return EpisodeGroup(task, episodes, rewards, scores.tolist())


SHAPER = RewardShaper(GRPO(missing_eos_penalty=1.0), max_new_tokens=10)


def test_a_group_that_only_penalties_tell_apart_trains_but_is_redrawn():
    """Rewards 2, 2; scores 2 and 2 − 1 = 1: their difference is an advantage, though the rewards are equal."""
    constant = group([2.0, 2.0], [True, False])
    assert not constant.wasted and constant.undecided
    metrics = group_metrics([constant]) | penalty_means(SHAPER, [constant])
    assert (metrics["wasted_groups"], metrics["score_sd"], metrics["penalty/missing_eos"]) == (0, 0.5, 0.5)
    equal = group([2.0, 2.0], [True, True])
    assert equal.wasted and equal.undecided
    differing = group([2.0, 3.0], [True, True])
    assert not differing.wasted and not differing.undecided
    # 3 − 1 = 2 − 0: advantages are 0.
    assert group([3.0, 2.0], [False, True]).wasted


def test_wasted_groups_of_a_resumed_run_are_counted_from_its_start():
    """Three groups of which two were wasted, then one of one: 3/4 of the run, also where a checkpoint lies between."""

    def rollouts() -> Rollouts:
        generated = Rollouts.__new__(Rollouts)
        generated.settings, generated.curriculum, generated.groups, generated.wasted = GRPO(), None, 0, 0
        generated.reward = SimpleNamespace(state_dict=dict, load_state_dict=lambda state: None)
        return generated

    first, resumed = rollouts(), rollouts()
    first.groups, first.wasted = 3, 2
    assert first.totals() == {"groups": 3, "wasted_groups": 2 / 3}
    resumed.load_state_dict(first.state_dict())
    resumed.groups, resumed.wasted = resumed.groups + 1, resumed.wasted + 1
    assert resumed.totals() == {"groups": 4, "wasted_groups": 3 / 4}


def test_an_unscored_reply_has_no_penalty():
    """The mean is over the scored response, which is complete; NaN less 1 is no score."""
    half = group([2.0, np.nan], [True, False])
    assert penalty_means(SHAPER, [half]) == {"penalty/missing_eos": 0.0}
    none = group([np.nan, np.nan], [True, False])
    assert none.wasted and penalty_means(SHAPER, [none]) == {}
