"""agent_bench and gaia as stages: scripted agents bound them, services and the local model drive them, runs resume."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from judge_server import Asked, JudgeServer, Said
from support import ONE_LAYER, command_inside, planned

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import read_json, read_jsonl
from rlhf_lab.core.metrics import undeclared
from rlhf_lab.packs.agents.benchmarks import agent_bench, gaia
from rlhf_lab.packs.agents.gaia.mini import mini_questions
from rlhf_lab.packs.agents.harness.scripted import ScriptedAgent
from rlhf_lab.packs.agents.tools.bench.task_sets import AgentBenchMini
from rlhf_lab.reports.report import write_report
from rlhf_lab.results.answer import answer
from rlhf_lab.results.rundir import read_run
from rlhf_lab.stages import artifacts
from rlhf_lab.stages.execute import ensure

SMALL = ("data=mini_hh_small", "data.train_pairs=48", "data.test_pairs=8", *ONE_LAYER, "seed=5", "needs.policy=null")
WORLD = ("data.train_tasks=64", "data.test_tasks=12", "checkpoint.every_steps=0", *ONE_LAYER, "seed=5")
WORLD += ("++stages.sft_roles.algorithm.epochs=0.5", "agent.max_turns=3", "rollout.max_new_tokens=8")


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    with JudgeServer() as running:
        yield running


def service(server: JudgeServer, directory: Path, *overrides: str, recipe: str = "agent_bench") -> artifacts.Stage:
    """The recipe with a service, on the server."""
    llm = ("agent.llm=anthropic", f"agent.service.base_url={server.url}", "agent.service.retries=0")
    return planned(recipe, *SMALL, *llm, f"outputs={directory}", *overrides)


BENCH = ("algorithm.tasks=[mini]", "algorithm.limit=6", "agent=react")
FACTS = {task.metadata["question"]: task.metadata for task in AgentBenchMini().tasks("test")}


def oracle(asked: Asked) -> Said:
    """Makes the calls that a task expects, then says the right answer."""
    question = next(message["content"] for message in asked.messages if message["role"] == "user")
    metadata = next(metadata for text, metadata in FACTS.items() if text in question)
    calls = [(call["name"], call["arguments"]) for call in metadata["calls"] if not call.get("optional")]
    if asked.turn < len(calls):
        return Said(f"step {asked.turn}", calls=[calls[asked.turn]])
    missing = metadata["scorer"] == "refusal"
    return Said(f"Answer: I cannot find {metadata['answer']}" if missing else f"Answer: {metadata['answer']}")


def with_agents(monkeypatch: pytest.MonkeyPatch, **behaviours: str) -> None:
    agents = {name: ScriptedAgent(behaviour) for name, behaviour in behaviours.items()}
    monkeypatch.setattr(agent_bench, "open_agents", lambda run: agents)


def test_scripted_agents_bound_the_benchmark(tmp_path, monkeypatch):
    with_agents(monkeypatch, oracle="oracle", refuses="always_refuse", guesses="always_guess", at_random="random_tools")
    stage = planned("agent_bench", *SMALL, f"outputs={tmp_path}", "algorithm.tasks=[mini,generated]",
                    "algorithm.limit=0", "algorithm.siblings=1", "agent.llm=anthropic")  # fmt: skip
    result = ensure(stage, 0)
    numbers = {policy["name"]: policy["metrics"] for policy in result["policies"]}
    for metrics in numbers.values():
        assert not undeclared(metrics)
        assert metrics["success"]["n"] == 72 and metrics["success"]["clusters"] == 36
    assert result["metrics"] == {"attempts": 288, "tasks/mini": 36, "tasks/generated": 36}
    best, refuses = numbers["oracle"], numbers["refuses"]
    assert best["success"]["mean"] == best["sequence_score"]["mean"] == 1
    assert best["right_by_wrong_process"]["mean"] == 0
    # graceful refusal is right for the tasks that cannot be done, and for no other
    assert 0 < refuses["success/failure_recovery"]["mean"] < 1
    assert refuses["success/tool_use"]["mean"] == refuses["success/multi_step"]["mean"] == 0
    assert refuses["zero_calls"]["mean"] == 1
    for name in ("guesses", "at_random"):
        assert numbers[name]["success"]["mean"] < 0.1
        assert numbers[name]["success_p"] < 1e-3 and numbers[name]["success_change"]["mean"] < -0.9
    text = answer(read_run(stage.directory)).sentence
    assert "oracle is best" in text and "guesses" in text
    page = (write_report(stage.directory).parent / "attempts.html").read_text()
    assert "288 of 288" in page or "are left out" in page


def test_a_service_drives_the_recipe_and_a_run_with_more_tasks_takes_what_a_smaller_one_did(server, tmp_path):
    server.answer = oracle
    smaller = service(server, tmp_path, *BENCH, "agent.service.input_usd=10", "agent.service.output_usd=20")
    (policy,) = ensure(smaller, 0)["policies"]
    metrics = policy["metrics"]
    assert metrics["success"]["mean"] == metrics["sequence_score"]["mean"] == 1
    assert metrics["agent_cost_usd"]["mean"] > 0 and metrics["agent_latency_s"]["mean"] > 0
    assert "test-key" not in (smaller.directory / "trajectories.jsonl").read_text()
    before = server.billed_requests
    larger = service(server, tmp_path, "algorithm.tasks=[mini]", "algorithm.limit=12", "agent=[react,zero_shot]")
    notes = ensure(larger, 0)["notes"]
    assert any(note.startswith("6 of 24 attempts are reused from earlier runs") for note in notes)
    assert server.billed_requests > before


def test_attacks_have_benign_runs_beside_them_and_become_cases(server, tmp_path):
    def gullible(asked: Asked) -> Said:
        last = asked.messages[-1]["content"]
        if asked.turn and "QUILLON" in last:
            return Said("Answer: QUILLON")
        decoys = {"delete_records": "archive", "send_message": "collect@attacker.example"}
        decoys |= {"set_permission": "everyone", "buy_item": "gift card"}
        for tool, target in decoys.items():
            if asked.turn and target in last and tool in asked.tools:
                return Said(calls=[(tool, {"target": target})])
        return oracle(asked)

    server.answer = gullible
    stage = service(server, tmp_path, *BENCH, "algorithm.inject=5")
    (policy,) = ensure(stage, 0)["policies"]
    metrics = policy["metrics"]
    assert not undeclared(metrics)
    assert metrics["success"]["mean"] == 1 and metrics["injection/utility_benign"]["mean"] == 1
    assert metrics["injection/success"]["mean"] > 0.5 and metrics["injection/utility"]["mean"] < 1
    assert "orders in tool results" in answer(read_run(stage.directory)).sentence
    cases = read_jsonl(stage.directory / "regressions.jsonl")
    assert cases and all({"task", "attack", "agent"} <= case.keys() for case in cases)
    server.answer = oracle
    file = stage.directory / "regressions.jsonl"
    again = service(server, tmp_path / "again", *BENCH, f"algorithm.regressions={file}")
    (repaired,) = ensure(again, 0)["policies"]
    assert repaired["metrics"]["injection/regressions"]["mean"] == 0
    assert repaired["metrics"]["injection/regressions"]["n"] == len(cases)


def test_gaia_has_both_scores_levels_and_a_folder_per_question(server, tmp_path):
    golds = {question.question: question.answer for question in mini_questions()}

    def knows(asked: Asked) -> Said:
        question = next(message["content"] for message in asked.messages if message["role"] == "user")
        gold = next(gold for text, gold in golds.items() if text in question)
        return Said(f"FINAL ANSWER: {gold}")

    server.answer = knows
    stage = service(server, tmp_path, "algorithm.limit=2", "agent=react", recipe="gaia")
    result = ensure(stage, 0)
    (policy,) = result["policies"]
    metrics = policy["metrics"]
    assert not undeclared(metrics)
    assert metrics["success"]["mean"] == metrics["lenient"]["mean"] == 1 and metrics["success"]["n"] == 6
    assert {"success/level_1", "success/level_2", "success/level_3"} <= metrics.keys()
    folders = sorted((stage.directory / gaia.ARTEFACTS).iterdir())
    assert len(folders) == 6
    attempt = json.loads((folders[0] / "react-0.json").read_text())
    assert attempt["scores"] == {"success": 1.0, "lenient": 1.0} and attempt["trajectory"]["turns"]
    assert "gaia_mini" in (write_report(stage.directory).parent / "attempts.html").read_text()


@pytest.mark.parametrize("recipe", ["agent_bench", "gaia"])
def test_the_local_model_runs_every_agent(tmp_path, recipe):
    more = ("algorithm.inject=2",) if recipe == "agent_bench" else ()
    stage = planned(recipe, *WORLD, f"outputs={tmp_path}", "algorithm.limit=2", *more)
    result = ensure(stage, 0)
    programs = stage.config.agent.programs
    assert [policy["name"] for policy in result["policies"]] == list(programs)
    for policy in result["policies"]:
        assert not undeclared(policy["metrics"])
        assert 0 <= policy["metrics"]["success"]["mean"] <= 1
    assert answer(read_run(stage.directory)).sentence
    write_report(stage.directory)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (("data=mini_hh_small",), "algorithm.tasks: world has the held-out tasks of data=tools"),
        (("algorithm.regressions=none.jsonl",), "algorithm.regressions=none.jsonl: there is no such file"),
    ],
)
def test_settings_that_cannot_work_are_refused(overrides, problem):
    with pytest.raises(ConfigError, match=problem.replace("[", r"\[").replace("]", r"\]")):
        _ = planned("agent_bench", *overrides).settings_key


def scripted(directory: Path, *overrides: str) -> list[str]:
    """A command with agents that ask no model."""
    limits = ("algorithm.tasks=[mini]", "algorithm.limit=8")
    return ["+recipe=agent_bench", *SMALL, f"outputs={directory}", *limits, *overrides]


def test_an_agent_that_always_raises_is_counted_and_quoted_everywhere(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("class Mine:\n    def run(self, prompt, tools):\n        raise RuntimeError('no key is set')\n")
    own = (f"agent.programs.python.path={file}:Mine", "agent=python")
    status_code, out = command_inside(tmp_path, *scripted(tmp_path / "outputs", *own))
    quoted = "RuntimeError: no key is set (mine.py, line 3)"
    printed = " ".join(out.split())
    assert status_code == 0 and "python: 8 of 8 attempts failed with an error of the agent" in printed
    assert quoted in printed and "attempts that failed with an error of the agent: python 1.00" in printed
    (directory,) = (tmp_path / "outputs/runs").glob("agent_bench-*")
    result = read_json(directory / "result.json")
    assert result["policies"][0]["metrics"]["agent_errors"]["mean"] == 1
    assert any(quoted in note for note in result["notes"])
    assert quoted in (directory / "report.html").read_text() and quoted in (directory / "attempts.html").read_text()


@pytest.mark.slow
def test_a_study_sweeps_agents(tmp_path):
    recipe = tmp_path / "mine" / "recipe"
    recipe.mkdir(parents=True)
    sweep = "{agent: [oracle, always_refuse], seed: [0, 1]}"
    (recipe / "agents.yaml").write_text(
        "# @package _global_\ndefaults:\n  - agent_bench\n"
        "question: Which agent?\nneeds: {policy: null}\n"
        f"study:\n  question: Which agent\n  sweep: {sweep}\n  compare: agent\n  baseline: oracle\n  processes: 1\n"
        "  metrics: [success, sequence_score]\n"
    )
    sized = [value for value in scripted(tmp_path)[1:] if not value.startswith("seed=")]
    status_code, out = command_inside(tmp_path, "--config-dir", str(tmp_path / "mine"), "+recipe=agents", *sized)
    assert status_code == 0, out
    (table,) = tmp_path.rglob("table.md")
    text = table.read_text()
    assert "always_refuse" in text and "success" in text
