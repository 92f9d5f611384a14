"""A rubric model learns grades: those of a small world's judge, and those of a file in the form of HelpSteer2."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support import ONE_LAYER, planned

from rlhf_lab.stages.execute import execute

pytestmark = pytest.mark.slow

WORLD = (
    *("data=mini_hh_small", "data.train_pairs=1000", "data.test_pairs=200", "data.grader.noise=0.5"),
    *("checkpoint.every_steps=0", "rollout.max_new_tokens=40"),
)


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> str:
    """Barely a policy: one pass of SFT."""
    stage = planned("sft", *WORLD, "algorithm.epochs=1", f"outputs={tmp_path_factory.mktemp('policy')}")
    execute(stage)
    return stage.model


def trained(policy, directory, *more):
    stage = planned(
        *("rubric_rm", *WORLD, *more, f"needs.policy={policy}", f"outputs={directory}"),
        *("algorithm.epochs=2", "algorithm.on_policy_fraction=0.1"),
    )
    return execute(stage)["metrics"]


@pytest.fixture(scope="module")
def scalar(policy, tmp_path_factory):
    return trained(policy, tmp_path_factory.mktemp("rubric"))


def test_it_learns_the_judge_of_a_small_world(scalar):
    """Chance is a correlation of 0 and half of the pairs. What it learnt is true, though the judge errs."""
    assert scalar["correlation"]["low"] > 0.2
    assert scalar["correlation/truth"]["low"] > 0.2
    assert scalar["gold_agreement"]["low"] > 0.52
    assert 0.9 < scalar["judge_correlation"]["mean"] < 1
    assert scalar["mse"]["n"] == 400
    assert 60 < scalar["pairs/on_policy"] <= 111


@pytest.mark.long
def test_a_judge_who_pays_for_length_teaches_it(scalar, policy, tmp_path):
    """Planted: .8 points per 10 words on every criterion make filler worth more than it costs in conciseness."""
    biased = trained(policy, tmp_path, "data.grader.length_bias=0.8", "data.grader.leniency=-2.4")
    assert biased["filler_shift"]["low"] > 0.1
    assert biased["filler_shift"]["low"] > scalar["filler_shift"]["high"]


def test_grades_of_a_file_and_an_output_for_each_attribute(tmp_path):
    """Helpfulness counts good words, verbosity the more frequent ones. No judge: no replies of the policy's own."""
    rng = np.random.default_rng(0)

    def response():
        good, other = rng.integers(0, 5, 2)
        text = rng.permutation(["green"] * int(good) + ["blue"] * int(other) + ["so"])
        return {"response": " ".join(text), "helpfulness": int(good), "verbosity": int(max(good, other))}

    rows = [{"prompt": f"what is {i}", **response()} for i in range(400) for _ in range(2)]
    path = tmp_path / "graded.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = ("data=graded", f"data.path={path}", "data.attributes=[helpfulness,verbosity]", *ONE_LAYER)
    fixed = ("algorithm.optimizer=adamw", "algorithm.lr=1e-2", "algorithm.batch_size=16", f"outputs={tmp_path}")
    common = (*data, *fixed, "checkpoint.every_steps=0", "rollout.max_new_tokens=12")
    sft = planned("sft", *common, "algorithm.epochs=1")
    execute(sft)
    weights = "algorithm.weights={helpfulness:1,verbosity:-0.5}"
    stage = planned("attribute_rm", *common, f"needs.policy={sft.model}", weights, "algorithm.epochs=6")
    result = execute(stage)
    found = result["metrics"]
    assert found["correlation/helpfulness"]["mean"] > 0.8
    assert found["accuracy"]["mean"] > 0.75
    assert found["pairs/on_policy"] == 0
    assert any("has no judge" in note for note in result["notes"])
    assert "correlation/truth" not in found
