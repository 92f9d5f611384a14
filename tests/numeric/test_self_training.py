"""Self-training: the balance score, which samples a round trains on, and how temperature and threshold are chosen."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support import ONE_LAYER, Stopped, checked, model_tensors, planned, stop_at

from rlhf_lab.algorithms.supervised.self_training import ScoredSamples, SelfTrainer
from rlhf_lab.algorithms.supervised.self_training_settings import SelfTraining
from rlhf_lab.core.episodes import Episode, Segment, Task
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import read_json
from rlhf_lab.stages.execute import execute
from rlhf_lab.statistics.repeated_samples import balance_score

TASK = Task("\n\nHuman: 1 + 1\n\nAssistant:")


def episode(response: str, *, finished: bool = True) -> Episode:
    return Episode(TASK, TASK.prompt, response, [1], (Segment([len(response)], True, [0.0]),), finished)


def samples(right: list[bool], scores: list[float]) -> ScoredSamples:
    """Two prompts with four samples each; the second and third of the first prompt are the same text."""
    texts = [["a", "b", "b", "c"], ["d", "e", "f", "g"]]
    groups = [[episode(text, finished=text != "g") for text in group] for group in texts]
    return ScoredSamples(groups, np.array(scores), np.array(right))


def test_the_balance_score_by_hand():
    """min(2/2, 1)·2/4 = ½; min(1/2, 1)·1/1 = ½; nothing selected is 0; min(3/2, 1)·3/3 = 1. Their mean is ½."""
    assert balance_score([2, 1, 0, 3], [4, 1, 0, 3], 2) == pytest.approx(0.5)


def test_exploration_and_exploitation_by_hand():
    right = [True, False, False, True, False, False, True, True]
    found = samples(right, [0.9, 0.8, 0.8, 0.2, 0.6, np.nan, 0.7, 0.9])
    # at ½ the first prompt accepts a, b, b; the second d and f: e has no score, and g has not ended
    assert found.accepted(0.5).tolist() == [True, True, True, False, True, False, True, False]
    assert found.distinct(found.accepted(0.5)) == [[0, 1], [4, 6]]
    metrics = found.metrics(0.5, target=1)
    assert metrics["balance"] == pytest.approx((1 / 2 + 1 / 2) / 2)
    assert metrics["explored"] == 1
    assert metrics["distinct_right"] == 2  # a and c; f and g
    assert metrics["accepted"] == pytest.approx(5 / 8)
    assert metrics["precision"] == pytest.approx(2 / 4)
    assert metrics["agreement"] == pytest.approx(3 / 8)  # a, e and f
    # two right solutions are needed, and each prompt has one: ½ · ½
    assert found.balance(0.5, target=2) == pytest.approx(1 / 4)


def test_the_round_takes_the_temperature_and_threshold_with_the_highest_balance():
    """At 1.0 the threshold 0.8 selects exactly the right samples; at 0.5 nothing is right."""
    right = [True, False, False, False, False, False, True, False]
    by_temperature = {
        0.5: samples([False] * 8, [0.9] * 8),
        1.0: samples(right, [0.9, 0.7, 0.7, 0.7, 0.7, 0.7, 0.9, 0.7]),
    }
    settings = SelfTraining(temperatures=(0.5, 1.0), thresholds=(0.5, 0.8))
    asked = []

    def sample(purpose: str, index: int, count: int, temperature: float) -> ScoredSamples:
        asked.append((index, count, temperature))
        return by_temperature[temperature]

    trainer = SimpleNamespace(settings=settings, _sample=sample)
    assert SelfTrainer._choose(trainer, 2) == (1.0, 0.8)
    assert asked == [(2, settings.probe_prompts, 0.5), (2, settings.probe_prompts, 1.0)]


SMALL = (
    "data=arithmetic_small",
    "data.train_problems=64",
    "data.test_problems=16",
    "rollout.max_new_tokens=16",
    "evaluation.prompts=4",
    "evaluation.samples_per_prompt=2",
    "reward=length",
    "algorithm.temperatures=[0.7,1.0]",
    "algorithm.thresholds=[-100]",
    "algorithm.prompts_per_round=8",
    "algorithm.probe_prompts=4",
    "algorithm.samples_per_prompt=2",
    "algorithm.steps_per_round=3",
    "algorithm.rounds=2",
    "algorithm.batch_size=4",
    "checkpoint.every_steps=1",
    *ONE_LAYER,
)


def test_a_resumed_run_trains_on_the_same_samples(tmp_path, monkeypatch):
    policy = planned("sft", *SMALL[:3], *ONE_LAYER, "algorithm.epochs=4", f"outputs={tmp_path}/sft")
    execute(policy)
    needs = f"needs.policy={policy.model}"
    stages = [planned("self_training", *SMALL, needs, f"outputs={tmp_path}/{name}") for name in ("whole", "resumed")]
    whole, resumed = stages
    result = execute(whole)
    assert [each["name"] for each in result["policies"]] == ["SFT", "round 1", "round 2"]
    assert result["metrics"]["accepted/round 2"] <= 1
    # inside the second round, whose samples come from the policy after the first
    stop_at(monkeypatch, SelfTrainer, 5)
    with pytest.raises(Stopped):
        execute(resumed)
    stop_at(monkeypatch, SelfTrainer, None)
    execute(resumed)
    expected, found = (model_tensors(Path(stage.model)) for stage in stages)
    assert all((expected[name] == found[name]).all() for name in expected)
    assert read_json(resumed.directory / "result.json")["metrics"] == result["metrics"]


def test_a_monitor_is_refused():
    with pytest.raises(ConfigError, match="algorithm=self_training has no"):
        checked("self_training", "reward.monitor.action=stop")
