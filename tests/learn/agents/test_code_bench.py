"""code_bench as a stage: scripted agents bound it, a service repairs in its second round, runs resume."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from judge_server import Asked, JudgeServer, Said
from support import ONE_LAYER, planned

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import read_jsonl
from rlhf_lab.core.metrics import undeclared
from rlhf_lab.core.tools import Call
from rlhf_lab.packs.agents.benchmarks.code_bench import programs_of
from rlhf_lab.packs.agents.benchmarks.trajectory_log import read_trajectories
from rlhf_lab.packs.agents.trajectory import AgentTrajectory, ModelTurn
from rlhf_lab.packs.code.debugging.debugging import DebuggingTasks
from rlhf_lab.packs.code.sandbox.levels import AUTOMATIC
from rlhf_lab.reports.report import write_report
from rlhf_lab.results.answer import answer
from rlhf_lab.results.rundir import read_run
from rlhf_lab.stages import artifacts
from rlhf_lab.stages.execute import ensure

pytestmark = pytest.mark.slow

WITHOUT_POLICY = (*ONE_LAYER, "seed=5", "needs.policy=null")
SMALL = ("data=mini_hh_small", "data.train_pairs=48", "data.test_pairs=8", *WITHOUT_POLICY)
SCRIPTED = ("agent.llm=anthropic", "agent=[code_oracle,code_unchanged,code_reads_errors]")
QUICK = "sandbox.timeout_s=4"
"""Two of the programs never end."""
FACTS = [task.metadata for task in DebuggingTasks().tasks("test")]


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    with JudgeServer() as running:
        yield running


def scripted(directory: Path, *overrides: str) -> artifacts.Stage:
    return planned("code_bench", *SMALL, *SCRIPTED, QUICK, f"outputs={directory}", *overrides)


def service(server: JudgeServer, directory: Path, *overrides: str) -> artifacts.Stage:
    """The recipe with a service, on the server."""
    llm = ("agent.llm=anthropic", f"agent.service.base_url={server.url}", "agent.service.retries=0")
    return planned("code_bench", *SMALL, *llm, "agent=coder", f"outputs={directory}", *overrides)


def metadata_of(asked: Asked) -> dict:
    question = asked.messages[0]["content"]
    return next(dict(metadata) for metadata in FACTS if metadata["question"] in question)


def mends_in_round_two(asked: Asked) -> Said:
    """Gives the program back, reads what running it gave, and repairs it if that was an error."""
    metadata = metadata_of(asked)
    if asked.turn == 0:
        return Said(f"I try it as it is.\n```python\n{metadata['program']}```")
    if asked.turn == 1 and "Traceback" in asked.question:
        return Said(f"I see.\n```python\n{metadata['solution']}```")
    return Said("Answer: done")


def test_scripted_agents_bound_the_benchmark(tmp_path):
    stage = scripted(tmp_path)
    result = ensure(stage, 0)
    numbers = {policy["name"]: policy["metrics"] for policy in result["policies"]}
    for metrics in numbers.values():
        assert not undeclared(metrics)
        assert metrics["success"]["n"] == metrics["success"]["clusters"] == 12
    best, unchanged, reads = (numbers[name] for name in ("code_oracle", "code_unchanged", "code_reads_errors"))
    assert best["success"]["mean"] == best["solved_within/1"]["mean"] == best["pass@1"]["mean"] == 1
    assert best["revision_gain"]["mean"] == 0 and best["code_rounds"]["mean"] == 1
    assert unchanged["success"]["mean"] == unchanged["pass@1"]["mean"] == 0
    assert reads["solved_within/1"]["mean"] == 0 and reads["solved_within/2"]["mean"] == 0.5
    of_tiers = [reads[f"solved_within/6/tier_{tier}"]["mean"] for tier in (1, 2, 3)]
    assert of_tiers == [reads[f"revision_gain/tier_{tier}"]["mean"] for tier in (1, 2, 3)] == [1, 0, 0.5]
    assert reads["pass@1/tier_1"]["mean"] == 1 and reads["code_rounds"]["mean"] == 1.5
    rows = read_jsonl(stage.directory / "evaluation.jsonl")
    assert {row["isolation"] for row in rows} <= set(AUTOMATIC)
    unsolved = {row["prompt_id"]: row["verdict"] for row in rows if row["policy"] == "code_unchanged"}
    assert unsolved["own/climb"] == unsolved["own/build_order"] == "timeout" and unsolved["own/median"] == "failed"
    assert any(note == f"isolation of the tests: {rows[0]['isolation']}" for note in result["notes"])
    text = answer(read_run(stage.directory)).sentence
    assert text.startswith("Code_oracle is best") and "revising adds" in text
    page = (write_report(stage.directory).parent / "attempts.html").read_text()
    assert "36 of 36" in page and "KeyError" in page and "the program, 5 lines" in page


def test_a_service_repairs_in_its_second_round(server, tmp_path):
    server.answer = mends_in_round_two
    prices = ("agent.service.input_usd=10", "agent.service.output_usd=20")
    stage = service(server, tmp_path, "algorithm.tiers=[1]", *prices)
    (policy,) = ensure(stage, 0)["policies"]
    metrics = policy["metrics"]
    assert not undeclared(metrics)
    means = [metrics[name]["mean"] for name in ("solved_within/1", "solved_within/2", "success")]
    assert means == [0, 1, 1]
    assert metrics["solved_by_revision"]["mean"] == 1 and metrics["agent_cost_usd"]["mean"] > 0
    rows = read_trajectories(stage.directory)
    assert [len(row["trajectory"]["turns"]) for row in rows] == [3] * 4
    hidden = [test for metadata in FACTS for test in metadata["tests"]]
    read = [turn["prompt"] for row in rows for turn in row["trajectory"]["turns"]]
    assert not [test for test in hidden if any(test.strip() in prompt for prompt in read)]


OPERATIONS = (("doubled", "*", 6), ("squared", "**", 9), ("more", "+", 5), ("less", "-", 1), ("half", "/", 1.5))


def test_rows_with_tests_are_tasks(tmp_path):
    rows = [
        {
            "task_id": f"mine/{name}",
            "prompt": f'def {name}(value):\n    """The value, {name}."""\n',
            "canonical_solution": f"    return value {operator} 2\n",
            "entry_point": name,
            "test": f"def check(candidate):\n    assert candidate(3) == {expected}\n",
        }
        for name, operator, expected in OPERATIONS
    ]
    path = tmp_path / "problems.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    data = ("data=humaneval", f"data.path={path}", "data.test_fraction=0.5", "algorithm.tasks=data")
    stage = planned("code_bench", *WITHOUT_POLICY, *SCRIPTED, *data, f"outputs={tmp_path}")
    numbers = {policy["name"]: policy["metrics"] for policy in ensure(stage, 0)["policies"]}
    assert numbers["code_oracle"]["success"]["mean"] == 1 and numbers["code_oracle"]["success"]["n"] == 5
    assert numbers["code_unchanged"]["success"]["mean"] == 0


def test_the_local_model_says_what_it_can_do(tmp_path):
    world = ("data.train_tasks=64", "data.test_tasks=12", "checkpoint.every_steps=0", *ONE_LAYER, "seed=5")
    world += ("++stages.sft_roles.algorithm.epochs=0.5", "agent.max_turns=2", "rollout.max_new_tokens=8")
    stage = planned("code_bench", *world, f"outputs={tmp_path}", "algorithm.tiers=[2]", "algorithm.limit=2", QUICK)
    result = ensure(stage, 0)
    success = {policy["name"]: policy["metrics"]["success"]["mean"] for policy in result["policies"]}
    assert success == {"coder": 0, "code_oracle": 1, "code_unchanged": 0, "code_reads_errors": 0}
    write_report(stage.directory)


def trajectory(*programs: str, final: str | None, stop: str = "answered") -> AgentTrajectory:
    turns = tuple(ModelTurn("agent", "", "", (Call("python", {"code": program}, ""),)) for program in programs)
    return AgentTrajectory(final, turns, stop)


def test_the_last_program_counts_whether_it_ran_or_not():
    assert programs_of(trajectory("a", "b", final="b")) == ["a", "b"]
    assert programs_of(trajectory("a", final="b", stop="call_limit")) == ["a", "b"]
    assert programs_of(trajectory("a", final=None, stop="turn_limit")) == ["a"]
    assert programs_of(trajectory(final=None, stop="turn_limit")) == []


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (("agent.programs.coder.answer=text",), "set agent.programs.coder.answer=code"),
        (("algorithm.pass_at=[2]",), "pass_at=[2] has a value above attempts=1"),
    ],
)
def test_settings_that_cannot_work_are_refused(overrides, problem):
    with pytest.raises(ConfigError, match=problem.replace("[", r"\[").replace("]", r"\]")):
        _ = planned("code_bench", *SMALL, "agent.llm=anthropic", *overrides).settings_key


def test_data_without_tests_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no row of data=.* has hidden tests; use e.g. data=humaneval"):
        ensure(scripted(tmp_path, "algorithm.tasks=data"), 0)
