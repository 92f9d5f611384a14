"""Attempts of agents: known by content, kept as they end, resumed after kills, scored, compared."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import scripted_agents
import support
from scripted_agents import FACTS, Capitals, Scripted, guesses, looks_up, questions, run_in, simple_score

from rlhf_lab.core.errors import JudgeUnavailable
from rlhf_lab.core.tools import Call
from rlhf_lab.packs.agents.benchmarks.attempts import BenchmarkQuestion, plan_attempts, spread
from rlhf_lab.packs.agents.benchmarks.benchmark import Benchmark, compare_rows
from rlhf_lab.packs.agents.benchmarks.trajectory_log import HIDDEN, TrajectoryLog, from_json, read_trajectories
from rlhf_lab.packs.agents.tools.settings import Tools
from rlhf_lab.packs.agents.tools.world import ToolWorld
from rlhf_lab.packs.agents.trajectory import AgentTrajectory, ModelTurn

RESULT_FILES = ("trajectories.jsonl", "evaluation.jsonl", "comparisons.json")
PATHS = [str(Path(module.__file__).parent) for module in (scripted_agents, support)]


def finish(directory, agents, asked=None, draws=1, **run):
    opened = run_in(directory, **run)
    result = Benchmark(opened, agents, asked or questions(), draws, simple_score).finish()
    return result, opened.notes


def both() -> dict[str, Scripted]:
    return {"searcher": Scripted("searcher", looks_up), "guesser": Scripted("guesser", guesses)}


def contents(directory: Path) -> dict[str, str]:
    return {name: (directory / name).read_text() for name in RESULT_FILES}


def test_a_trajectory_survives_json():
    call = Call("search", {"entity": "Oslo", "n": 2}, "Norway", id="c1")
    turn = ModelTurn("planner", "\n\nHuman: q", "said", (call,), 5, 7, 0.25, stored=True)
    trajectory = AgentTrajectory("Norway", (turn, turn), "turn_limit", 1.5, "e")
    assert from_json(json.loads(json.dumps(asdict(trajectory)))) == trajectory


def test_scores_effort_and_categories(tmp_path):
    result, _ = finish(tmp_path / "run", both())
    searcher, guesser = (policy["metrics"] for policy in result.policies)
    assert searcher["success"]["mean"] == 1 and searcher["zero_calls"]["mean"] == 0
    assert guesser["success"]["mean"] == 0.5 and guesser["right_by_wrong_process"]["mean"] == 0.5
    assert guesser["success/tool_use"]["mean"] == 1 and guesser["success/multi_step"]["mean"] == 0
    assert guesser["zero_calls"]["mean"] == 1 and guesser["tool_calls"]["mean"] == 0
    assert searcher["agent_input_tokens"]["mean"] == 24 and searcher["agent_cost_usd"]["mean"] == pytest.approx(0.01)
    assert searcher["agent_wall_s"]["mean"] == 0.5 and searcher["model_turns"]["mean"] == 2
    assert (searcher["success"]["n"], searcher["success"]["clusters"]) == (6, 6)
    assert result.metrics == {"attempts": 12, "tasks/mini": 6}
    # 3 tasks only the searcher: exact McNemar with 3 discordant tasks is 2·(1/2)^3
    assert guesser["success_change"]["mean"] == -0.5 and guesser["success_p"] == pytest.approx(0.25)
    assert guesser["success_detectable"] > 0.3
    (row,) = [r for r in json.loads((tmp_path / "run/comparisons.json").read_text()) if r["metric"] == "success"]
    assert row["test"].startswith("exact McNemar") and row["tasks"] == 6


def test_templates_and_draws_cluster_the_comparison(tmp_path):
    requested = questions(Capitals(templates=3))
    finish(tmp_path / "run", both(), requested)
    (row,) = [r for r in json.loads((tmp_path / "run/comparisons.json").read_text()) if r["metric"] == "success"]
    assert "3 templates" in row["test"] and row["difference"]["clusters"] == 3
    rows = [json.loads(line) for line in (tmp_path / "run/evaluation.jsonl").read_text().splitlines()]
    selected = [{**row, "sample_id": draw} for row in rows for draw in (0, 1)]
    (twice,) = compare_rows(selected, ["success"])
    assert twice["tasks"] == 6  # two draws of a task are one pair


def test_a_changed_task_is_done_alone(tmp_path):
    finish(tmp_path / "run", both())
    changed = Capitals(FACTS | {"Lima": "Perú"})
    again = both()
    result, _ = finish(tmp_path / "run", again, questions(changed))
    assert again["searcher"].played == again["guesser"].played == [("lima", 0)]
    rows = read_trajectories(tmp_path / "run")
    assert len(rows) == 12 and [row["task"] for row in rows][:3] == ["oslo", "lima", "cairo"]
    assert rows[1]["trajectory"]["answer"] == "Perú"
    assert result.policies[0]["metrics"]["success"]["mean"] == 1


def test_another_agent_seed_or_draw_is_another_attempt(tmp_path):
    requested = questions()
    keys = {attempt.key for attempt in plan_attempts("a", {"model": 1}, requested, 2, 0)}
    assert len(keys) == 12
    assert not keys & {attempt.key for attempt in plan_attempts("a", {"model": 2}, requested, 2, 0)}
    assert not keys & {attempt.key for attempt in plan_attempts("a", {"model": 1}, requested, 2, 1)}
    # the name of an agent in a run decides nothing
    assert keys == {attempt.key for attempt in plan_attempts("b", {"model": 1}, requested, 2, 0)}
    known = [replace(question, known="files changed") for question in requested]
    assert not keys & {attempt.key for attempt in plan_attempts("a", {"model": 1}, known, 2, 0)}


def test_a_larger_run_takes_the_attempts_of_a_smaller_one(tmp_path):
    finish(tmp_path / "agent_bench-1", both(), draws=1)
    larger = both()
    _, notes = finish(tmp_path / "agent_bench-2", larger, draws=2)
    assert {draw for _, draw in larger["searcher"].played} == {1}
    assert any("12 of 24 attempts are reused from earlier runs" in note for note in notes)
    refreshed = both()
    finish(tmp_path / "agent_bench-3", refreshed, draws=1, refresh=True)
    assert len(refreshed["searcher"].played) == 6


@pytest.mark.parametrize(
    ("definitions", "is_taken"),
    [({"agent": "a1"}, True), ({"agent": "a1", "other agent": "b1"}, True), ({"agent": "a2"}, False)],
)
def test_attempts_by_other_code_are_not_taken(tmp_path, definitions, is_taken):
    finish(tmp_path / "agent_bench-1", both(), definitions=definitions)
    later = both()
    finish(tmp_path / "agent_bench-2", later, definitions={"agent": "a1", "third agent": "c1"})
    assert bool(later["searcher"].played) != is_taken


@pytest.mark.parametrize("limit", [3, 6, 10, 12])
def test_a_limit_keeps_the_share_of_every_category(limit):
    """The world cycles through its kinds of tasks, other sets are ordered by category; both have 30 tasks here."""
    cyclic = ToolWorld(Tools(kinds={"lookup": 1, "chain_2": 1, "chain_3": 1}, test_tasks=30))
    everything = [BenchmarkQuestion("world", task, cyclic.tools) for task in cyclic.tasks("test")]
    for asked in (everything, sorted(everything, key=lambda question: question.category)):
        chosen = spread(asked, limit)
        categories = Counter(question.category for question in chosen)
        assert len(chosen) == limit and max(categories.values()) - min(categories.values()) <= 1
        assert len(categories) == 3 and chosen == sorted(chosen, key=asked.index)
    assert spread(everything, 0) == spread(everything, 100) == everything


def test_errors_of_the_infrastructure_are_no_results(tmp_path):
    broken = Scripted("searcher", looks_up, raised_after=2, error=JudgeUnavailable("the service is down"))
    with pytest.raises(JudgeUnavailable):
        finish(tmp_path / "run", {"searcher": broken})
    assert len(read_trajectories(tmp_path / "run")) == 2
    again = Scripted("searcher", looks_up)
    finish(tmp_path / "run", {"searcher": again})
    assert len(again.played) == 4
    finish(tmp_path / "whole", {"searcher": Scripted("searcher", looks_up)})
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


KILLED = """
import sys
sys.path[:0] = {paths!r}
from pathlib import Path
from scripted_agents import Scripted, guesses, looks_up, questions, run_in, simple_score
from rlhf_lab.packs.agents.benchmarks.benchmark import Benchmark
agents = {{"searcher": Scripted("searcher", looks_up), "guesser": Scripted("guesser", guesses, killed_after=2)}}
Benchmark(run_in(Path({directory!r})), agents, questions(), 1, simple_score).finish()
"""


@pytest.mark.slow
@pytest.mark.parametrize("torn", [b"", b'{"key": "torn'])
def test_killed_with_kill_9_the_next_start_ends_with_the_same_files(tmp_path, torn):
    code = KILLED.format(paths=PATHS, directory=str(tmp_path / "run"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
    assert done.returncode == -9, done.stderr
    with (tmp_path / "run/trajectories.jsonl").open("ab") as file:
        file.write(torn)  # a kill within a write
    assert len(read_trajectories(tmp_path / "run")) == 8
    again = both()
    finish(tmp_path / "run", again)
    assert not again["searcher"].played and len(again["guesser"].played) == 4
    finish(tmp_path / "whole", both())
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_a_second_start_does_what_is_missing_or_damaged(tmp_path):
    finish(tmp_path / "run", both())
    before = contents(tmp_path / "run")
    again = both()
    finish(tmp_path / "run", again)
    assert not again["searcher"].played and not again["guesser"].played
    file = tmp_path / "run/trajectories.jsonl"
    file.write_text(file.read_text().replace("Peru", "Pero", 1))
    _, notes = finish(tmp_path / "run", again)
    assert again["searcher"].played == [("lima", 0)] and not again["guesser"].played
    assert any("1 damaged" in note for note in notes)
    assert contents(tmp_path / "run") == before


def test_secrets_are_not_written(tmp_path, monkeypatch):
    monkeypatch.setenv("OUR_API_KEY", "correct-horse-battery")
    log = TrajectoryLog(tmp_path)
    call = Call("fetch", {"header": "Bearer abcdefghijklmnopqrstu"}, "my key is correct-horse-battery.")
    turn = ModelTurn("agent", "sk-ant-0123456789abcdefgh", "task-oriented key-findings", (call,))
    log.add("k", {"agent": "a"}, AgentTrajectory("correct-horse-battery", (turn,)))
    text = (tmp_path / "trajectories.jsonl").read_text()
    assert "correct-horse" not in text and "sk-ant" not in text and "abcdefghij" not in text
    assert text.count(HIDDEN) == 4 and "task-oriented key-findings" in text
    assert TrajectoryLog(tmp_path).trajectory("k").answer == HIDDEN


def test_errors_of_an_agent_are_counted_and_the_most_frequent_one_is_quoted(tmp_path):
    """Four of six tasks fail with one error and one with another: 5/6 of the attempts, noted with the four."""

    def fails(task, tools, draw):
        if task.metadata["id"] == "oslo":
            return looks_up(task, tools, draw)
        error = "TypeError: no key" if task.metadata["id"] == "lima" else f"KeyError: {'long ' * 100}(mine.py, line 3)"
        return AgentTrajectory(None, stop="failed", error=error)

    agents = {"searcher": Scripted("searcher", looks_up), "mine": Scripted("mine", fails)}
    result, notes = finish(tmp_path / "run", agents)
    rates = {policy["name"]: policy["metrics"]["agent_errors"] for policy in result.policies}
    assert rates["searcher"]["mean"] == 0
    assert rates["mine"]["mean"] == pytest.approx(5 / 6)
    (note,) = notes
    assert "5 of 6 attempts failed" in note and "4 times: KeyError" in note
    assert "long long …" in note and len(note) < 600
    # attempts from the log of an interrupted run are counted as well
    _, notes = finish(tmp_path / "run", agents)
    assert notes == [note]
