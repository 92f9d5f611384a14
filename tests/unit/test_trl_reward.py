"""What is logged of sampled groups, by this engine or by TRL, counts abstentions as unscored."""

from __future__ import annotations

import math

import pytest

from rlhf_lab.algorithms.policy_gradient.rollouts import group_metrics
from rlhf_lab.core.episodes import Episode, Segment, Task
from rlhf_lab.sampling.experience import Group


def group(rewards: list[float], lengths: list[int], ended: list[bool]) -> Group:
    episodes = [
        Episode(Task("Q"), "Q", "x", [1], (Segment([7] * length, sampled=True),), end)
        for length, end in zip(lengths, ended, strict=True)
    ]
    return Group(Task("Q"), episodes, rewards, rewards)


def test_metrics_of_two_groups_by_hand():
    found = group_metrics([group([1.0, 3.0], [2, 4], [True, True]), group([math.nan, 2.0], [6, 8], [True, False])])
    assert found["reward"] == pytest.approx(2.0)
    assert found["reward_sd"] == pytest.approx(math.sqrt(2 / 3))
    assert found["unscored"] == 0.25
    assert (found["tokens"], found["generated_tokens"], found["ended"]) == (5.0, 20.0, 0.75)
