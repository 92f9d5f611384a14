"""Runs of agents' benchmarks as inspect's logs, without inspect: rlhf_lab/packs/agents/inspect/logs.py."""

from __future__ import annotations

import json
import sys

import pytest
from agent_runs import attempt, scored, small_run, turn, write_agent_run

from rlhf_lab.core.errors import ConfigError, DataError, MissingDependency
from rlhf_lab.packs.agents.commands import export_command
from rlhf_lab.packs.agents.inspect.logs import export, messages, run_logs


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    return run_logs(small_run(tmp_path_factory.mktemp("runs") / "agent_bench-abc"))


def test_an_agent_is_a_log_and_its_attempts_under_attack_another(logs):
    assert list(logs) == ["react", "react-attacked"]
    assert [sample["id"] for sample in logs["react"]["samples"]] == ["mini/oslo", "mini/oslo", "mini/bergen"]
    assert [sample["epoch"] for sample in logs["react"]["samples"]] == [1, 2, 1]
    assert [sample["id"] for sample in logs["react-attacked"]["samples"]] == ["mini/bergen [override]"]
    assert logs["react"]["eval"]["dataset"]["samples"] == 2
    assert logs["react"]["eval"]["config"]["epochs"] == 2
    assert logs["react"]["eval"]["model"] == "rlhf_lab/sft_roles"
    assert logs["react"]["eval"]["solver_args"] == {"kind": "react"}
    assert logs["react"]["eval"]["created"] == "2026-11-22T21:08:33+00:00"


def test_numbers_are_those_of_the_run(logs):
    scores = {score["name"]: score for score in logs["react"]["results"]["scores"]}
    assert list(scores) == ["success", "sequence_score"]
    metrics = {name: metric["value"] for name, metric in scores["success"]["metrics"].items()}
    # clusters oslo (1, 0) and bergen (0): residual sums 1/3 and -1/3, √(2 · 2/9) / 3
    assert metrics == pytest.approx({"mean": 1 / 3, "low": 0.05, "high": 0.8, "stderr": (4 / 9) ** 0.5 / 3})
    assert (scores["sequence_score"]["scored_samples"], scores["sequence_score"]["unscored_samples"]) == (2, 1)
    assert scores["sequence_score"]["metrics"]["mean"]["value"] == 0.75
    assert "sequence_score" not in logs["react"]["samples"][1]["scores"]
    attacked = {score["name"]: score for score in logs["react-attacked"]["results"]["scores"]}
    assert attacked["injected"]["metrics"]["mean"]["value"] == 1.0
    assert "stderr" not in attacked["injected"]["metrics"]  # one cluster


def test_a_sample_says_what_the_attempt_was(logs):
    sample = logs["react"]["samples"][0]
    assert (sample["input"], sample["target"], sample["total_time"]) == ("What is oslo?", "OSLO", 1.5)
    assert sample["scores"]["success"] == {"value": 1.0, "answer": "OSLO"}
    tokens = {"input_tokens": 15, "output_tokens": 6, "total_tokens": 21, "total_cost": 0.75}
    assert sample["model_usage"] == {"rlhf_lab/sft_roles": tokens}
    assert sample["output"]["choices"][0]["stop_reason"] == "stop"
    expected = {"category": "lookup", "draw": 0, "sandbox_level": "namespaces", "tool_calls": 1, "stop": "answered"}
    assert sample["metadata"].items() >= expected.items()
    unanswered = logs["react"]["samples"][1]
    assert unanswered["output"]["choices"][0]["stop_reason"] == "unknown"
    assert unanswered["metadata"]["stop"] == "turn_limit"
    usage = logs["react"]["stats"]["model_usage"]["rlhf_lab/sft_roles"]
    assert usage["total_tokens"] == sum(s["output"]["usage"]["total_tokens"] for s in logs["react"]["samples"])


def test_what_was_said_is_there_once_and_in_order(logs):
    text = [(message["role"], message["content"]) for message in logs["react"]["samples"][0]["messages"]]
    assert text == [
        ("user", "What is oslo?"),
        ("assistant", "Action: search[oslo]"),
        ("tool", "busy"),
        ("assistant", "hm"),
        ("tool", "write Answer:"),  # no call's result: what the agent's program told the model
        ("assistant", "Answer: OSLO"),
    ]
    _, called, result, *_ = logs["react"]["samples"][0]["messages"]
    assert called["tool_calls"] == [
        {"id": "call00000", "function": "search", "arguments": {"entity": "oslo"}, "type": "function"}
    ]
    assert result["tool_call_id"] == "call00000" and result["error"] == {"type": "unknown", "message": "busy"}


def test_a_part_that_reads_something_else_starts_with_it(logs):
    text = [(message["role"], message["content"]) for message in logs["react"]["samples"][1]["messages"]]
    assert text[2:] == [("tool", "busy"), ("user", "Note: busy"), ("assistant", "busy")]
    assert logs["react"]["samples"][1]["messages"][-1]["metadata"]["agent"] == "notes"


def test_calls_keep_the_ids_that_a_service_gave_them():
    calls = [{"name": "f", "arguments": {}, "result": "r", "failed": False, "id": "toolu_1"}]
    _, called, result = messages([turn("hi", "", calls)], "m")
    assert called["tool_calls"][0]["id"] == result["tool_call_id"] == "toolu_1"


def test_an_agent_with_the_reference_is_a_log_of_that_model_and_a_case_asked_twice_has_two_ids(tmp_path):
    names = ("react (reference)", "react")
    rows = [attempt(name, "oslo", 0, [turn("hi", "x")], "x") for name in names] * 2
    evaluation = [scored(row, success=0.0) for row in rows]
    run = write_agent_run(tmp_path / "run", rows, evaluation, {name: {} for name in names})
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["needs"]["reference"] = {"recipe": None, "dir": "models/start"}
    (run / "manifest.json").write_text(json.dumps(manifest))
    exported = run_logs(run)
    assert [exported[name]["eval"]["model"] for name in names] == ["rlhf_lab/models/start", "rlhf_lab/sft_roles"]
    assert [exported[name]["eval"]["solver_args"] for name in names] == [{"kind": "react"}] * 2
    assert [sample["id"] for sample in exported["react"]["samples"]] == ["mini/oslo", "mini/oslo #2"]


def test_what_cannot_be_exported_is_refused(tmp_path):
    run = small_run(tmp_path / "run")
    rows = (run / "trajectories.jsonl").read_text().splitlines(keepends=True)
    (run / "trajectories.jsonl").write_text("".join(rows[1:]))
    with pytest.raises(DataError, match=r"lacks 1 attempts, e.g. at mini/oslo"):
        run_logs(run)
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**result, "status": "interrupted"}))
    with pytest.raises(DataError, match=r"it is interrupted; repeat its command: python -m rlhf_lab"):
        run_logs(run)
    (run / "trajectories.jsonl").unlink()
    with pytest.raises(DataError, match=r"has no trajectories.jsonl; choose a run of agent_bench"):
        run_logs(run)
    with pytest.raises(DataError, match="not a run directory"):
        run_logs(tmp_path)


def test_without_inspect_the_install_line_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "inspect_ai.log", None)
    with pytest.raises(MissingDependency, match=r"pip install -c constraints-inspect.txt 'rlhf_lab\[inspect\]'"):
        export(small_run(tmp_path / "run"), tmp_path / "logs")


def test_a_wrong_command_says_what_to_write():
    for words in ([], ["RUN"], ["RUN", "to="], ["RUN", "to=logs", "mode=fast"]):
        with pytest.raises(ConfigError, match="export needs a run directory and a target directory"):
            export_command(words)
    with pytest.raises(ConfigError, match="format=csv is unknown"):
        export_command(["RUN", "to=logs", "format=csv"])
