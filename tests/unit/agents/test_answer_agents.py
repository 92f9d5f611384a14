"""Answers of a benchmark of agents in words, and values that its settings refuse."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

from rlhf_lab.packs.agents.answers import agents
from rlhf_lab.packs.agents.benchmarks import settings as agent_settings
from rlhf_lab.packs.agents.benchmarks.settings import AgentBench
from rlhf_lab.packs.agents.tools.bench import templates
from rlhf_lab.results.rundir import EvaluatedPolicy
from rlhf_lab.statistics.estimates import Estimate


def rate(mean: float, low: float, high: float, n: int = 36) -> Estimate:
    return Estimate(mean, low, high, n, n)


def number(value: float) -> Estimate:
    return Estimate(value, float("-inf"), float("inf"), 0, 0)


def run_of(*policies: EvaluatedPolicy) -> SimpleNamespace:
    return SimpleNamespace(policies=policies)


def test_one_agent_that_is_never_right_has_a_bound():
    text = agents(run_of(EvaluatedPolicy("react", {"success": rate(0, 0, 0.1)})))
    assert text == "React is not right in any of 36 attempts (below 0.100 with 95 % confidence)."


def test_several_agents_sets_and_differences():
    first = EvaluatedPolicy("react", {"success_on/world": rate(0.9, 0.8, 0.95), "success_on/mini": rate(0, 0, 0.1),
                             "success": rate(0.45, 0.4, 0.5, 72)})  # fmt: skip
    change = {"success_change": rate(-0.3, -0.4, -0.2, 72), "success_p": number(0.001)}
    worse = EvaluatedPolicy("plan", {"success_on/world": rate(0.3, 0.2, 0.4), "success_on/mini": rate(0, 0, 0.1),
                            "success": rate(0.15, 0.1, 0.2, 72), "right_by_wrong_process": rate(0.1, 0.0, 0.2, 72),
                            **change})  # fmt: skip
    equal = EvaluatedPolicy("pad", {**first.metrics, "success_change": rate(0, -0.1, 0.1, 72), "success_p": number(1.0),
                           "success_detectable": number(0.12)})  # fmt: skip
    text = agents(run_of(first, worse, equal))
    assert text is not None
    assert "React is best, right in 0.900" in text and "36 attempts at world" in text
    assert "no agent is right in any of 36 attempts at mini" in text
    assert "against react: plan −0.30" in text
    assert "not distinguishable from react: pad; 0.120 would have been detected" in text
    assert "right by a wrong process: plan 0.10" in text


def test_packaged_files_count_by_content_where_they_are_used(tmp_path, monkeypatch):
    chosen = AgentBench(inject=2)
    before = chosen.contents()
    assert before.keys() == {"task_files", "injections"}
    assert AgentBench(tasks=("generated",)).contents() == {"task_files": before["task_files"]}
    assert AgentBench(tasks=("world",)).contents() == {}

    monkeypatch.setattr(templates, "TASKS", shutil.copytree(templates.TASKS, tmp_path / "tasks"))
    attacks = shutil.copy(agent_settings.INJECTIONS, tmp_path)
    monkeypatch.setattr(agent_settings, "INJECTIONS", tmp_path / "injections.yml")
    (tmp_path / "tasks" / "flaky.yml").write_text("[]")  # of a category that is not asked
    assert chosen.contents() == before
    for file in (tmp_path / "tasks" / "multi_step.yml", attacks):
        with open(file, "a") as opened:
            opened.write("# changed\n")
    after = chosen.contents()
    assert all(after[name] != before[name] for name in before)
