"""Rounds of DPO on audio: which clips become pairs, and what is refused."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.media import Audio
from rlhf_lab.packs.speech.parler.client import SpeechPrompt, SpokenClip
from rlhf_lab.packs.speech.parler.command import read_prompts, run
from rlhf_lab.packs.speech.parler.rounds import DpoSettings, NoPairs, best_and_worst, run_dpo, score

PROMPT = SpeechPrompt("Hello.", "A voice.")
AUDIO = [Audio(np.zeros(800, np.float32), 8000)] * 3


def clips(count: int) -> list[SpokenClip]:
    return [SpokenClip(PROMPT, np.full((1, 2), n), True, np.zeros((1, 2)), 0.0) for n in range(count)]


def test_the_best_and_the_worst_of_each_prompt():
    spoken = clips(9)
    scores = np.array([0.1, 0.9, 0.5, 2, 2, 2, -3, -1, -2], dtype=float)
    pairs = best_and_worst(spoken, scores, clips_of_each=3)
    assert [(spoken.index(chosen), spoken.index(rejected)) for chosen, rejected in pairs] == [(1, 0), (7, 6)]


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


def test_settings_that_make_no_sense_are_all_named():
    with pytest.raises(ConfigError) as error:
        DpoSettings(rounds=0, clips=1, beta=0.0, lr=-1.0)
    assert [problem.split("=")[0] for problem in error.value.problems] == ["rounds", "clips", "beta", "lr"]


def test_prompts_of_a_file(tmp_path):
    file = tmp_path / "prompts.jsonl"
    rows = [{"text": "Hello.", "description": "A voice.", "category": "greeting"}, {"text": "No.", "description": ""}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows[:1]))
    assert read_prompts(str(file)) == [PROMPT]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=r"row 2 is not a prompt; expected the form \{"):
        read_prompts(str(file))
    separated = {"text": "Hello.\u2028Bye.", "description": "A voice."}  # JSON may contain this line separator
    file.write_text(json.dumps(separated, ensure_ascii=False) + "\n")
    assert [prompt.text for prompt in read_prompts(str(file))] == ["Hello.\u2028Bye."]
    file.write_text(json.dumps(rows[0]), encoding="utf-8-sig")
    assert read_prompts(str(file)) == [PROMPT]
    file.write_text(json.dumps({**rows[0], "text": "Grüße."}, ensure_ascii=False), encoding="latin-1")
    with pytest.raises(DataError, match="row 1 is not a prompt"):
        read_prompts(str(file))
    file.write_text("hello\n")
    with pytest.raises(DataError, match="row 1 is not a prompt"):
        read_prompts(str(file))
    file.write_text("")
    with pytest.raises(DataError, match="has no prompts"):
        read_prompts(str(file))


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
