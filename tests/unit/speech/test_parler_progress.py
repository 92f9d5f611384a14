"""Progress of a training of Parler-TTS: what is kept after a round, and which directories are refused."""

from __future__ import annotations

import json

import pytest

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import read_jsonl, replacing
from rlhf_lab.packs.speech.parler.rounds import RoundMetrics, TrainingProgress

ORIGIN = {"lr": 1e-5, "betas": (0.9, 0.95)}


class Saves:
    """Parler whose weights are a text, with its own atomic saving."""

    has_adapter = False

    def __init__(self):
        self.fails = False

    def save(self, directory, *, with_optimizer, files):
        with replacing(directory) as temporary:
            temporary.mkdir()
            (temporary / "weights").write_text(f"optimizer={with_optimizer}")
            if self.fails:
                raise OSError("no room")
            for name, text in files.items():
                (temporary / name).write_text(text)


def finished_round(number):
    return RoundMetrics(number, 1.0, 2.0, 0.0, 0.0, 1.5, 0.0, 4, 1, 0.69, 0.0, 1.0)


def test_finished_rounds_are_found_again(tmp_path):
    progress = TrainingProgress(tmp_path / "to", ORIGIN)
    assert progress.rounds == []
    progress.save(Saves(), finished_round(1), is_last=False)
    (tmp_path / "to" / "rounds.jsonl").unlink()  # killed between the model and this file
    found = TrainingProgress(tmp_path / "to", ORIGIN)
    assert [row["round"] for row in found.rounds] == [1]
    assert read_jsonl(tmp_path / "to" / "rounds.jsonl") == found.rounds
    assert (found.model / "weights").read_text() == "optimizer=True"
    found.save(Saves(), finished_round(2), is_last=True)
    assert [row["round"] for row in TrainingProgress(tmp_path / "to", ORIGIN).rounds] == [1, 2]
    assert (found.model / "weights").read_text() == "optimizer=False"


def test_a_round_that_was_not_saved_does_not_count(tmp_path):
    progress = TrainingProgress(tmp_path / "to", ORIGIN)
    progress.save(Saves(), finished_round(1), is_last=False)
    failing = Saves()
    failing.fails = True
    with pytest.raises(Exception, match="no room"):
        progress.save(failing, finished_round(2), is_last=True)
    assert len(TrainingProgress(tmp_path / "to", ORIGIN).rounds) == 1
    assert len(read_jsonl(tmp_path / "to" / "rounds.jsonl")) == 1


def test_another_training_and_a_directory_of_something_else_are_refused(tmp_path):
    TrainingProgress(tmp_path / "to", ORIGIN).save(Saves(), finished_round(1), is_last=False)
    with pytest.raises(ConfigError, match="has a training with other values of guard, lr; repeat its command"):
        TrainingProgress(tmp_path / "to", {**ORIGIN, "lr": 1e-4, "guard": "b.py"})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.json").write_text(json.dumps({}))
    with pytest.raises(ConfigError, match=r"is not empty and has no model/training\.json; name a new directory"):
        TrainingProgress(tmp_path / "mine", ORIGIN)
