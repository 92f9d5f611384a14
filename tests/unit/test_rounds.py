"""A round of iterative preference optimisation: which replies are paired, and its file."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
from support import checked

from rlhf_lab.algorithms.preference import dpo_iterative
from rlhf_lab.algorithms.preference.dpo_iterative import Round, RoundFiles, best_and_worst
from rlhf_lab.algorithms.preference.settings import IterativeDPO
from rlhf_lab.core.errors import ArtifactError, ConfigError


def test_the_best_is_paired_with_the_worst_where_they_differ():
    nan = np.nan
    scores_BG = np.array([[1.0, 3.0, 2.0], [2.0, 2.0, 2.0], [nan, 5.0, 4.0], [nan, nan, nan], [nan, nan, 1.0]])
    assert best_and_worst(scores_BG) == [(0, 1, 0), (2, 1, 2)]


@pytest.fixture
def files(tmp_path) -> RoundFiles:
    return RoundFiles(SimpleNamespace(directory=tmp_path))


def test_a_round_is_read_as_it_was_written(files):
    written = Round(2, {"pairs": 1.0}, [[[1], [2, 3], [4]]], 0.5, {"level": 1}, [[-1.0], [-2.0]])
    files.write(written)
    read = files.read(2)
    assert read == written
    assert read.rows() == [(([1], [2, 3]), ([1], [4]))]
    previous = read.previous_logps()
    assert (previous.chosen.tolist(), previous.rejected.tolist()) == ([-1.0], [-2.0])
    assert Round(1, {}, []).previous_logps() is None


@pytest.mark.parametrize("state", ["missing", "damaged"])
def test_a_round_that_was_trained_on_is_not_guessed(files, state):
    files.write(Round(1, {"pairs": 1.0}, [[[1], [2], [3]]]))
    if state == "missing":
        files.path(1).unlink()
    else:
        files.path(1).write_text(files.path(1).read_text().replace("1.0", "2.0", 1))
    with pytest.raises(ArtifactError, match=rf"round_1\.json is {state}, and the policy has trained on its pairs"):
        files.read(1)


PROMPTS_NOTE = "algorithm.prompts_per_round=5000: there are 1000 training prompts"
CORPUS_NOTE = (
    "algorithm.corpus_fraction=0.8: {} own pairs need {} corpus pairs, and there are 2600; all of them are used, which "
    "are {} of the pairs"
)


@pytest.mark.parametrize(
    ("prompts", "fraction", "more", "steps", "notes"),
    [
        # 12 prompts and a quarter from the corpus are 16 pairs
        (12, 0.25, {"updates_per_pair": 2, "batch_size": 8}, 4, []),
        (640, 0.8, {}, 100, []),  # 3200 pairs; in floating point 640/(1 − 0.8)/32 is a little above 100
        (641, 0.8, {}, 101, []),
        (5000, 0.0, {"batch_size": 10}, 100, [PROMPTS_NOTE]),  # of 1000 training prompts
        # 680 prompts and all 2600 corpus pairs are 3280 pairs
        (680, 0.8, {"batch_size": 40}, 82, [CORPUS_NOTE.format(680, 2720, 0.79)]),
        # the first round still has enough corpus pairs
        (640, 0.8, {"buffer": "full"}, 100, [CORPUS_NOTE.format(1920, 7680, 0.58)]),
    ],
)
def test_the_steps_of_a_round_count_its_corpus_pairs(prompts, fraction, more, steps, notes, monkeypatch):
    settings = IterativeDPO(rounds=3, prompts_per_round=prompts, corpus_fraction=fraction, **{"batch_size": 32, **more})

    def start(algorithm, settings, run):
        algorithm.settings, algorithm.run, algorithm.encoder = settings, run, None
        algorithm.evaluator = SimpleNamespace(reward=object())
        algorithm.model = algorithm.reference = None

    monkeypatch.setattr(dpo_iterative.PreferenceAlgorithm, "__init__", start)
    for name in ("EpisodeCollector", "Watch", "RoundFiles", "RollOut", "Auditor"):
        monkeypatch.setattr(dpo_iterative, name, lambda *arguments, **options: None)
    noted: list[str] = []
    corpus = SimpleNamespace(prompts=lambda split: [f"prompt {number}" for number in range(1000)], train=range(2600))
    algorithm = dpo_iterative.IteratedDPO(settings, SimpleNamespace(corpus=corpus, note=noted.append))
    assert (algorithm.round_steps, algorithm.total_steps) == (steps, 3 * steps)
    assert noted == notes


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm.logps=per_codebook"], "a model of family llama has no codebooks; use logps=sum"),
        (["reward.confidence_weight=0.5"], "needs a running mean of rewards"),
        (["reward.monitor.action=stop", "algorithm.rounds=1"], "never acts: the first round is the baseline; set"),
    ],
)
def test_rounds_refuse_what_cannot_work(overrides, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        checked("dpo_iterative", *overrides)
