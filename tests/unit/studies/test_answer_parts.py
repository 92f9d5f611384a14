"""Sentences that answer a run's question, from its numbers: how a reward ranks, what imitation costs, what changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_lab.results.answer_policies import against_one_pass, against_reference, reward_and_truth
from rlhf_lab.results.answer_rewards import heldout_loss, pair_ranking
from rlhf_lab.results.rundir import StoredRun, read_run


def rate(mean: float, half: float) -> dict:
    return {"mean": mean, "low": mean - half, "high": mean + half, "n": 400, "clusters": 400}


def storing(directory: Path, **metrics: object) -> StoredRun:
    path = directory / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"metrics": metrics}))
    return read_run(directory)


@pytest.mark.parametrize(
    ("accuracy", "said", "shift", "verb"),
    [
        (0.8, "0.200 more than", 0.5, "raises"),
        (0.4, "0.200 fewer than", -0.5, "lowers"),
        (0.61, "not distinguishable from", 0.05, "does not clearly change"),
    ],
)
def test_a_reward_is_measured_against_length_alone_with_filler_and_disagreement(make_run, accuracy, said, shift, verb):
    numbers = {"accuracy": rate(accuracy, 0.04), "longer_wins": rate(0.6, 0.04), "filler_shift": rate(shift, 0.1)}
    sentence = str(pair_ranking(storing(make_run(), **numbers, disagreement=0.25)))
    assert said in sentence
    assert f"; filler {verb} its score" in sentence and "disagree by 0.250 sd per response" in sentence
    assert heldout_loss(read_run(make_run("other"))) is None  # nothing was measured


def test_a_policy_is_measured_against_one_pass_or_else_against_its_start(make_run):
    full = read_run(make_run("whole", prompts=64))
    assert str(against_one_pass(full)).startswith("No: iterating scores")
    without = read_run(make_run("without", prompts=64, policies=("SFT", "iteration 1")))
    assert against_one_pass(without) == against_reference(without)
    policies = ("SFT", "one-pass DPO", "iteration 1", "certified policy")
    restored = read_run(make_run("restored", prompts=64, policies=policies))
    assert "certified policy against one-pass DPO" in str(against_one_pass(restored))
    assert str(against_reference(without)).startswith("iteration 1 raises the gold reward")
    assert against_reference(read_run(make_run("alone", policies=("SFT",)))) is None


def test_the_reward_and_the_truth_are_told_apart(make_run):
    """In the synthetic run the proxy rises with every policy; gold rises at first, and falls by policy 4."""
    first = read_run(make_run("first", prompts=64, policies=("SFT", "later")))
    assert "the gold reward follows: it rises by" in str(reward_and_truth(first))
    fallen = read_run(make_run("fallen", prompts=64, policies=("SFT", "a", "b", "c", "d"), seed=3))
    assert "proxy" in str(reward_and_truth(fallen)) and "the gold reward" in str(reward_and_truth(fallen))
    assert reward_and_truth(read_run(make_run("blind", prompts=64, gold=False))) == against_reference(
        read_run(make_run("blind too", prompts=64, gold=False))
    )
