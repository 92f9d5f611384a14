"""A curriculum at the edge of competence: it draws informative tasks, and a resumed run draws the same ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support import assert_equal_models, execute_with_stops, planned

from rlhf_lab.algorithms.policy_gradient.grpo import GroupPolicyOptimisation
from rlhf_lab.core.files import read_json, read_jsonl
from rlhf_lab.core.metrics import undeclared
from rlhf_lab.stages.artifacts import Stage
from rlhf_lab.stages.execute import execute

SIZE = (
    *("data=arithmetic_small", "data.train_problems=48", "data.test_problems=24", "model=micro", "reward=verifier"),
    *("evaluation.prompts=6", "evaluation.samples_per_prompt=4", "evaluation.pass_at=[1,2,4]"),
    *("rollout.max_new_tokens=12", "algorithm.curriculum=edge", "algorithm.iterations=6", "algorithm.batch_size=8"),
    *("algorithm.prompts_per_iteration=8", "algorithm.group_size=4", "algorithm.dynamic_sampling=1"),
    *("algorithm.optimizer=adamw", "algorithm.log_every_steps=1", "runtime.device=cpu"),
    # with a bonus for stating an answer, groups differ before the policy can calculate
    "reward.terms.verifier.format_bonus=0.5",
)


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> Path:
    stage = planned("sft", *SIZE[:5], "algorithm.epochs=4", f"outputs={tmp_path_factory.mktemp('sft')}")
    execute(stage)
    return Path(stage.model)


def plan(directory: Path, policy: Path, every: int = 0) -> Stage:
    return planned("grpo", *SIZE, f"needs.policy={policy}", f"outputs={directory}", f"checkpoint.every_steps={every}",
                   "needs.reward=null")  # fmt: skip


def logged(stage: Stage) -> list[str]:
    rows = read_jsonl(stage.directory / "metrics.jsonl")
    return [json.dumps({key: value for key, value in row.items() if key != "time"}) for row in rows]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, policy) -> Stage:
    stage = plan(tmp_path_factory.mktemp("whole"), policy)
    execute(stage)
    return stage


@pytest.mark.slow
def test_resumed_equals_uninterrupted(tmp_path, policy, uninterrupted, monkeypatch):
    """Four steps per iteration: step 4 is the first of one, steps 9 and 18 are within one."""
    stage = plan(tmp_path, policy, every=2)
    result = execute_with_stops(monkeypatch, GroupPolicyOptimisation, stage, 4, 9, 18)
    assert logged(stage) == logged(uninterrupted)
    assert_equal_models(stage, uninterrupted)
    assert result["policies"] == read_json(uninterrupted.directory / "result.json")["policies"]


def test_what_is_logged_and_measured(uninterrupted):
    rows = [row for row in read_jsonl(uninterrupted.directory / "metrics.jsonl") if "curriculum/new" in row]
    assert len(rows) == 6
    assert not undeclared(key for row in rows for key in row if key.startswith("curriculum/"))
    assert rows[0]["curriculum/new"] == 1 and rows[0]["curriculum/difficulty"] is None
    tried = [row["curriculum/tried"] for row in rows]
    assert tried == sorted(tried) and tried[-1] > tried[1] > 0
    assert all(0 < row["curriculum/difficulty"] < 1 for row in rows[1:])
    assert all(0 <= row["curriculum/informative"] <= 1 for row in rows)
    assert np.mean([row["curriculum/new"] for row in rows[1:]]) < 0.8
    policies = read_json(uninterrupted.directory / "result.json")["policies"]
    for measured in (policy["metrics"] for policy in policies):
        assert measured["pass@1"]["mean"] <= measured["pass@2"]["mean"] <= measured["pass@4"]["mean"]
        assert measured["pass@1"]["mean"] == pytest.approx(measured["correct"]["mean"])
        assert 0 <= measured["maj@4"]["mean"] <= 1
