"""The scale of the scores of a reward model."""

from __future__ import annotations

from rlhf_lab.rewards.learned.bt import SCALE_FILE, ScoreScale


def test_the_score_scale_is_read_from_the_model_folder(tmp_path):
    assert ScoreScale.read(tmp_path) == ScoreScale(0.0, 1.0, 0, 512)
    (tmp_path / SCALE_FILE).write_text('{"mean": 2.0, "sd": 0.5, "n": 10, "max_length": 64}')
    assert ScoreScale.read(tmp_path) == ScoreScale(2.0, 0.5, 10, 64)
