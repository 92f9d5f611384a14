"""Penalties of `algorithms/policy_gradient/shaping.py` as parts of the score, and what `monitoring/silence.py` says."""

from __future__ import annotations

import numpy as np

from rlhf_lab.algorithms.policy_gradient.settings import GRPO
from rlhf_lab.algorithms.policy_gradient.shaping import RewardShaper
from rlhf_lab.monitoring.silence import no_reward


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
