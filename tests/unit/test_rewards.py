"""Checks of every reward."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support import said

from rlhf_lab.core.errors import NumericError
from rlhf_lab.core.types import RewardBatch
from rlhf_lab.rewards.checked import CheckedReward
from rlhf_lab.rewards.learned.bt import SCALE_FILE, ScoreScale


def checked(*scores: float) -> CheckedReward:
    return CheckedReward("planted", lambda prompts, responses: RewardBatch(np.array(scores), {"a": np.array(scores)}))


def test_scores_pass_through_with_their_parts():
    batch = checked(1, 2)(said(["p", "p"], ["a", "b"]))
    assert batch.total_N.tolist() == [1.0, 2.0]
    assert batch.total_N.dtype == np.float64
    assert list(batch.parts) == ["a"]


@pytest.mark.parametrize("scores", [(1.0,), (1.0, 2.0, 3.0), ((1.0, 2.0), (3.0, 4.0))])
def test_a_wrong_shape_is_refused(scores):
    with pytest.raises(NumericError, match=r"planted returned .* for 2 responses"):
        checked(*scores)(said(["p", "p"], ["a", "b"]))


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_an_infinite_score_is_refused_with_its_reply(value):
    with pytest.raises(NumericError, match="infinite for response 1: 'bad reply'"):
        checked(0, value)(said(["p", "p"], ["fine", "bad reply"]))


def test_an_abstention_stays_nan_and_is_counted():
    reward = checked(math.nan, 1, math.nan)
    for _ in range(2):
        total = reward(said(["p"] * 3, ["a", "b", "c"])).total_N
    assert np.isnan(total).tolist() == [True, False, True]
    assert (reward.scored, reward.abstained) == (2, 4)


def test_the_score_scale_is_read_from_the_model_folder(tmp_path):
    assert ScoreScale.read(tmp_path) == ScoreScale(0.0, 1.0, 0, 512)
    (tmp_path / SCALE_FILE).write_text('{"mean": 2.0, "sd": 0.5, "n": 10, "max_length": 64}')
    assert ScoreScale.read(tmp_path) == ScoreScale(2.0, 0.5, 10, 64)
