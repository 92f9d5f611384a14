"""Rounds of DPO on audio: which clips become pairs, and what is refused."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.files import read_jsonl, replacing
from rlhf_lab.core.media import Audio
from rlhf_lab.packs.speech.parler.client import SpeechPrompt, SpokenClip
from rlhf_lab.packs.speech.parler.command import read_prompts, run
from rlhf_lab.packs.speech.parler.rounds import (
    DpoSettings,
    NoPairs,
    RoundMetrics,
    TrainingProgress,
    run_dpo,
    score,
)

PROMPT = SpeechPrompt("Hello.", "A voice.")
AUDIO = [Audio(np.zeros(800, np.float32), 8000)] * 3


class OneWeight:
    """A model of one weight w: the log-probability of clip n of a prompt is w · n."""

    def __init__(self):
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.trained = []

    def generate(self, prompts, *, clips, seed, temperature):
        codes = [np.full((1, 2), n) for n in range(clips)]
        return [SpokenClip(prompt, one, True, np.zeros((1, 2)), 0.0) for prompt in prompts for one in codes]

    def decode(self, clips):
        return [Audio(np.full(800, clip.codes_TK[0, 0] / 10, np.float32), 8000) for clip in clips]

    def logps(self, clips, *, with_graph):
        numbers = [int(clip.codes_TK[0, 0]) for clip in clips]
        if with_graph:
            self.trained.append(numbers)
        return SimpleNamespace(clips_N=self.weight * torch.tensor(numbers, dtype=torch.float32))

    def step(self, *, lr, max_grad_norm):
        return {"all": 0.0}


def loudness(prompts, audio):
    return [float(clip.samples_N.mean()) for clip in audio]


def test_a_guard_refuses_the_clips_below_its_floor():
    """Clips 0…3 have the loudness 0…0.3; the guard refuses the two loudest, so 1 is chosen, and 2 is rejected."""

    def guard(prompts, audio):
        return [-1.0 if clip.samples_N[0] > 0.15 else 0.0 for clip in audio]

    parler = OneWeight()
    settings = DpoSettings(rounds=1, clips=4)
    (metrics,) = run_dpo(parler, [PROMPT], loudness, settings, guard)
    assert parler.trained == [[1, 2]]
    assert metrics.refused == 0.5 and metrics.pairs == 1
    assert metrics.reward == pytest.approx(0.15) and metrics.reward_best == pytest.approx(0.3)
    parler = OneWeight()
    (metrics,) = run_dpo(parler, [PROMPT], loudness, settings)
    assert parler.trained == [[3, 0]] and metrics.refused == 0


def test_a_guard_that_refuses_everything_is_named():
    with pytest.raises(NoPairs, match=r"or the guard refused them \(100% of all\), so there are no pairs"):
        list(run_dpo(OneWeight(), [PROMPT], loudness, DpoSettings(clips=4), lambda prompts, audio: [-1.0] * 4))


@pytest.mark.parametrize(
    ("scores", "says"),
    [
        ([1.0, 2.0], r"shape \(2,\) for 3 clips; expected one score per clip"),
        ([1.0, float("nan"), 2.0], r"returned nan for clip 1 \(0.10 s for 'Hello.'\)"),
        ([1.0, 2.0, float("inf")], "returned inf for clip 2"),
    ],
)
def test_scores_that_are_no_scores(scores, says):
    with pytest.raises(DataError, match=says):
        score(lambda prompts, audio: scores, [PROMPT] * 3, AUDIO)


def test_prompts_of_a_file(tmp_path):
    file = tmp_path / "prompts.jsonl"
    rows = [{"text": "Hello.", "description": "A voice.", "category": "greeting"}, {"text": "No.", "description": ""}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows[:1]))
    assert read_prompts(str(file)) == [PROMPT]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=r"row 2 is not a prompt: description is text ''.*; expected the form \{"):
        read_prompts(str(file))
    separated = {"text": "Hello.\u2028Bye.", "description": "A voice."}  # JSON may contain this line separator
    file.write_text(json.dumps(separated, ensure_ascii=False) + "\n")
    assert [prompt.text for prompt in read_prompts(str(file))] == ["Hello.\u2028Bye."]
    file.write_text(json.dumps(rows[0]), encoding="utf-8-sig")
    assert read_prompts(str(file)) == [PROMPT]
    file.write_text(json.dumps({**rows[0], "text": "Grüße."}, ensure_ascii=False), encoding="latin-1")
    with pytest.raises(DataError, match="row 1 is not a prompt: byte 13 is 0xfc, not UTF-8; save the file as UTF-8"):
        read_prompts(str(file))
    file.write_text("hello\n")
    with pytest.raises(DataError, match=r"row 1 is not a prompt: .*JSON"):
        read_prompts(str(file))
    file.write_text("")
    with pytest.raises(DataError, match="has no prompts"):
        read_prompts(str(file))
    for other in (tmp_path, "owner/name"):
        with pytest.raises(DataError, match=r"is not a file .*; name a JSONL file of prompts"):
            read_prompts(str(other))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train"], "'train' is not an action of parler"),
        (["setup", "here"], "'here' is not an option of the form name=value"),
        (["setup", "folde=x"], "folde is not a setting; did you mean folder"),
        (["dpo", "model=m", "lr=fast"], "lr=fast is text, expected a number"),
        (["dpo", "model=m", "dtype=bfloat16"], "dtype=bfloat16 is not one of float32, float64"),
        (["dpo", "model=m"], "prompts, reward, to must be set"),
        (["dpo", "model=m", "prompts=p", "reward=loudness", "to=x"], "reward=loudness must name a function in a file"),
        (["dpo", "model=m", "prompts=p", "reward=a.py:b", "to=x", "guard=c"], "guard=c must name a function in a file"),
    ],
)
def test_wrong_commands(words, says):
    with pytest.raises(ConfigError) as error:
        run(words)
    assert any(says in problem for problem in error.value.problems), error.value.problems


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
