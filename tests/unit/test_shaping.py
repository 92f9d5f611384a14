"""From reward to score: each switch does what it says, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from rlhf_lab.algorithms.policy_gradient.settings import PPO
from rlhf_lab.algorithms.policy_gradient.shaping import RewardShaper
from rlhf_lab.core.errors import ConfigError

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
