"""Attempts at tasks of one template are not independent: intervals and the gate are clustered by it, and say so."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from rlhf_lab.gates import register
from rlhf_lab.gates.gate import judge
from rlhf_lab.gates.scores import Scores
from rlhf_lab.reports.comparison.compare import find_sides, run_differences
from rlhf_lab.reports.comparison.report import compare
from rlhf_lab.results.gains import compare_policies
from rlhf_lab.results.rundir import read_run

SENTENCE = "clustered by the template of the task"
TEMPLATES = ("a", "a", "a", "b", "b", "c")


def write_run(directory: Path, kind: str, *, templates: Sequence[str] = TEMPLATES, **success: Sequence[int]) -> Path:
    """A run of agents with one attempt at each task; nothing but its rows is stored."""
    directory.mkdir(parents=True)
    rows = [
        {"policy": agent, "prompt_id": f"mini/{i}", "prompt": f"task {i}", "template": template, "success": outcome}
        for agent, outcomes in success.items()
        for i, (template, outcome) in enumerate(zip(templates, outcomes, strict=True))
    ]
    (directory / "evaluation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = [{"name": agent, "metrics": {}} for agent in success]
    (directory / "result.json").write_text(json.dumps({"status": "completed", "policies": names, "metrics": {}}))
    (directory / "manifest.json").write_text(json.dumps({"recipe": kind, "key": directory.name, "needs": {}}))
    (directory / "config.yaml").write_text(f"algorithm: {{kind: {kind}}}\n")
    return directory


def test_two_agents_of_a_run_are_compared_by_template(tmp_path):
    run = read_run(write_run(tmp_path / "run", "agent_bench", react=(0, 0, 0, 1, 1, 0), plan=(1, 1, 1, 0, 0, 1)))
    difference = compare_policies(run, "plan", "react", "success").difference
    assert (difference.n, difference.clusters) == (6, 3)


def test_two_runs_are_compared_by_template(tmp_path):
    a = write_run(tmp_path / "a", "agent_bench", react=(0, 0, 0, 1, 1, 0))
    b = write_run(tmp_path / "b", "agent_bench", react=(1, 1, 1, 1, 1, 0))
    (found,) = run_differences(*find_sides(a, b))
    # by task McNemar's test would take three attempts at one template for three independent pairs
    assert found.versus.test.startswith("paired t test, cluster-robust")
    assert (found.versus.difference.n, found.versus.difference.clusters) == (6, 3)
    page = compare(a, b, to=tmp_path / "page").page.read_text()
    assert SENTENCE in page and "Over 3 shared templates" in page


def test_runs_of_stages_that_cluster_otherwise_are_compared_by_prompt(tmp_path):
    a = write_run(tmp_path / "a", "agent_bench", react=(0, 0, 0, 1, 1, 0))
    b = write_run(tmp_path / "b", "dpo", react=(1, 1, 1, 1, 1, 0))
    (found,) = run_differences(*find_sides(a, b))
    assert found.versus.difference.clusters == 6
    assert "clustered by prompt" in compare(a, b, to=tmp_path / "page").page.read_text()


@pytest.fixture
def gated(tmp_path):
    """A suite, and a function that writes a run with one attempt at each of 60 tasks of three templates.

    All tasks of the first `failing` templates are wrong.
    """
    suite = tmp_path / "suite.yaml"
    suite.write_text("suite: agents\nmetrics:\n  success: {margin: 0.05, better: higher}\n")

    def write(name: str, failing: int) -> str:
        right = [int(task % 3 >= failing) for task in range(60)]
        return str(write_run(tmp_path / "runs" / name, "agent_bench", templates="abc" * 20, react=right))

    return str(suite), write


def test_one_template_that_fails_is_one_event_and_no_regression_of_the_gate(gated):
    suite, write = gated
    first, second = write("a", 0), write("b", 1)
    decision = judge(suite, first, accept=True)
    assert (decision.verdicts[0].value.n, decision.verdicts[0].value.clusters) == (60, 3)
    (verdict,) = judge(suite, second, accept=True).verdicts
    # 20 of 60 tasks fell, but all of one template: t = −1 on 2 degrees of freedom. By task it would be p < 10⁻⁵.
    assert verdict.gain.difference.clusters == 3
    assert verdict.state == "undecided"
    assert "templates would decide (3 were used)" in verdict.words


def test_equal_runs_of_the_gate_count_templates(gated, tmp_path):
    suite, write = gated
    judge(suite, write("a", 1), accept=True)
    (verdict,) = judge(suite, write("b", 1), accept=True).verdicts
    assert (verdict.state, verdict.words) == ("pass", "equal on all 3 templates")
    _, checks = register.last_accepted(tmp_path / "accepted" / "agents.json")
    assert checks["success"].clusters["mini/4 task 4"] == "b"
    history = register.history(tmp_path / "accepted" / "agents.json")
    assert not history[0]["checks"]["success"]["clusters"]  # only the last run is compared with


def test_scores_without_clusters_are_by_prompt():
    value = {"mean": 0.5, "low": 0.2, "high": 0.8, "n": 4, "clusters": 4}
    scores = Scores.from_dict({"estimate": value, "outcomes": {"a": [1.0]}})
    assert (scores.clusters, scores.unit) == ({}, "prompt")
