"""A round of iterative preference optimisation: which replies are paired, and its file."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
from support import checked

from rlhf_lab.algorithms.preference import dpo_iterative
from rlhf_lab.algorithms.preference.rounds import Round, RoundFiles, best_and_worst
from rlhf_lab.algorithms.preference.settings import NO_REFERENCE, IterativeDPO
from rlhf_lab.core.errors import ArtifactError, ConfigError
from rlhf_lab.losses.objective import PREFERENCE_LOSSES


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


@pytest.mark.parametrize(
    ("prompts", "fraction", "updates", "batch_size", "steps"),
    [
        (12, 0.25, 2, 8, 4),  # 12 prompts and a quarter from the corpus are 16 pairs
        (640, 0.8, 1, 32, 100),  # 3200 pairs; in floating point 640/(1 − 0.8)/32 is a little above 100
        (641, 0.8, 1, 32, 101),
        (5000, 0.0, 1, 10, 100),  # of 1000 training prompts
    ],
)
def test_the_steps_of_a_round_count_its_corpus_pairs(prompts, fraction, updates, batch_size, steps, monkeypatch):
    settings = IterativeDPO(
        rounds=3, prompts_per_round=prompts, corpus_fraction=fraction, updates_per_pair=updates, batch_size=batch_size
    )

    def start(algorithm, settings, run):
        algorithm.settings, algorithm.run, algorithm.encoder = settings, run, None
        algorithm.evaluator = SimpleNamespace(reward=object())
        algorithm.model = algorithm.reference = None

    monkeypatch.setattr(dpo_iterative.PreferenceAlgorithm, "__init__", start)
    for name in ("EpisodeCollector", "Watch", "RoundFiles", "RollOut", "Auditor"):
        monkeypatch.setattr(dpo_iterative, name, lambda *arguments, **options: None)
    notes: list[str] = []
    corpus = SimpleNamespace(prompts=lambda split: [f"prompt {number}" for number in range(1000)])
    algorithm = dpo_iterative.IteratedDPO(settings, SimpleNamespace(corpus=corpus, note=notes.append))
    assert (algorithm.round_steps, algorithm.total_steps) == (steps, 3 * steps)
    assert notes == ["algorithm.prompts_per_round=5000: there are 1000 training prompts"] * (prompts > 1000)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm.logps=per_codebook"], "a model of family llama has no codebooks; use logps=sum"),
        (["reward.confidence_weight=0.5"], "needs a running mean of rewards"),
        *(
            (
                ["reward.monitor.action=raise_kl", f"algorithm.loss={loss}"],
                f"algorithm.loss={loss} has no KL penalty; use reward.monitor.action=stop",
            )
            for loss in NO_REFERENCE[:1]
        ),
        *(
            (
                [f"reward.monitor.action={action}", "algorithm.rounds=1"],
                f"action={action} never acts: the first round is the baseline; set algorithm.rounds=2",
            )
            for action in ("stop", "raise_kl")
        ),
    ],
)
def test_rounds_refuse_what_cannot_work(overrides, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        checked("dpo_iterative", *overrides)


def test_the_losses_without_a_reference():
    without = [loss for loss, objective in PREFERENCE_LOSSES.items() if not objective.needs("ref")]
    assert list(NO_REFERENCE) == without
    assert checked("dpo_iterative", "reward.monitor.action=raise_kl").algorithm.loss == "sigmoid"
