"""The gate on runs of agents: attempts at tasks of one template share errors, so the template is the unit."""

from __future__ import annotations

import json
from pathlib import Path

from rlhf_lab.gates import register
from rlhf_lab.gates.gate import judge
from rlhf_lab.gates.scores import Scores

SUITE = "suite: agents\nmetrics:\n  success: {margin: 0.05, better: higher}\n"
TASKS, TEMPLATES = 60, 3


def write_run(directory: Path, failing: int) -> str:
    """One attempt at each of 60 tasks of three templates; all tasks of the first `failing` templates are wrong."""
    directory.mkdir(parents=True)
    rows = []
    for task in range(TASKS):
        template = task % TEMPLATES
        right = int(template >= failing)
        row = {"policy": "react", "prompt_id": f"mini/{task}", "prompt": f"task {task}", "success": right}
        rows.append({**row, "template": f"template {template}"})
    (directory / "evaluation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    policies = [{"name": "react", "metrics": {}}]
    (directory / "result.json").write_text(json.dumps({"status": "completed", "policies": policies, "metrics": {}}))
    manifest = {"recipe": "agent_bench", "key": directory.name, "needs": {}}
    (directory / "manifest.json").write_text(json.dumps(manifest))
    (directory / "config.yaml").write_text("algorithm: {kind: agent_bench}\n")
    return str(directory)


def test_one_template_that_fails_is_one_event_and_no_regression(tmp_path):
    suite = tmp_path / "suite.yaml"
    suite.write_text(SUITE)
    first, second = write_run(tmp_path / "runs" / "a", 0), write_run(tmp_path / "runs" / "b", 1)
    decision = judge(str(suite), first, accept=True)
    assert (decision.verdicts[0].value.n, decision.verdicts[0].value.clusters) == (60, 3)
    (verdict,) = judge(str(suite), second, accept=True).verdicts
    # 20 of 60 tasks fell, but all of one template: t = −1 on 2 degrees of freedom. By task it would be p < 10⁻⁵.
    assert verdict.gain.difference.clusters == 3
    assert verdict.state == "undecided"
    assert "templates would decide (3 were used)" in verdict.words


def test_equal_runs_count_templates(tmp_path):
    suite = tmp_path / "suite.yaml"
    suite.write_text(SUITE)
    first, second = write_run(tmp_path / "runs" / "a", 1), write_run(tmp_path / "runs" / "b", 1)
    judge(str(suite), first, accept=True)
    (verdict,) = judge(str(suite), second, accept=True).verdicts
    assert (verdict.state, verdict.words) == ("pass", "equal on all 3 templates")
    _, checks = register.last_accepted(tmp_path / "accepted" / "agents.json")
    assert checks["success"].clusters["mini/4 task 4"] == "template 1"
    history = register.history(tmp_path / "accepted" / "agents.json")
    assert not history[0]["checks"]["success"]["clusters"]  # only the last run is compared with


def test_registers_of_earlier_versions_are_read():
    value = {"mean": 0.5, "low": 0.2, "high": 0.8, "n": 4, "clusters": 4}
    scores = Scores.from_dict({"estimate": value, "outcomes": {"a": [1.0]}})
    assert (scores.clusters, scores.unit) == ({}, "prompt")
