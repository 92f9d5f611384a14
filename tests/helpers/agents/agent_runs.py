"""Run directories of benchmarks of agents, as the stages write them, without running any."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def turn(prompt: str, text: str, calls: Sequence[Row] = (), agent: str = "agent", **fields: Any) -> Row:
    values = {"input_tokens": 5, "output_tokens": 2, "cost_usd": 0.25, "stored": False, "latency_s": 0.1}
    return {"agent": agent, "prompt": prompt, "text": text, "calls": list(calls), **values, **fields}


def call(name: str, result: str, failed: bool = False, **arguments: str) -> Row:
    return {"name": name, "arguments": arguments, "result": result, "failed": failed, "id": ""}


def attempt(agent: str, task: str, draw: int, turns: Sequence[Row], answer: str | None, **fields: Any) -> Row:
    """A row of trajectories.jsonl."""
    stop = fields.pop("stop", "answered")
    trajectory = {"answer": answer, "turns": list(turns), "stop": stop, "wall_s": 1.5, "error": ""}
    return {
        "key": f"{agent}-{task}-{draw}-{fields.get('attack', '')}",
        "agent": agent,
        "set": "mini",
        "task": task,
        "category": "lookup",
        "template": f"mini/{task}",
        "attack": "",
        "draw": draw,
        "question": f"What is {task}?",
        "expected": {"answer": task.upper(), "calls": []},
        "tools": ["search"],
        **fields,
        "trajectory": trajectory,
        "sha256": "",
    }


def scored(row: Row, **scores: float | None) -> Row:
    """The row of evaluation.jsonl of an attempt."""
    return {
        "policy": row["agent"],
        "prompt_id": f"{row['set']}/{row['task']}",
        "sample_id": row["draw"],
        "prompt": row["question"],
        "response": row["trajectory"]["answer"] or "",
        "key": row["key"],
        "set": row["set"],
        "category": row["category"],
        "template": row["template"],
        "attack": row["attack"],
        "regression": False,
        "stop": row["trajectory"]["stop"],
        **scores,
        "tool_calls": sum(len(turn["calls"]) for turn in row["trajectory"]["turns"]),
    }


def write_agent_run(
    directory: Path, attempts: Sequence[Row], evaluation: Sequence[Row], metrics: Mapping[str, Mapping[str, Any]]
) -> Path:
    """A completed run directory.

    Args:
        metrics: agent → its estimates, as in result.json.
    """
    directory.mkdir(parents=True)
    manifest = {
        "recipe": "agent_bench",
        "command": "python -m rlhf_lab +recipe=agent_bench",
        "question": "Which agent?",
        "key": "abc",
        "created": "2026-11-22T21:08:33+0000",
        "git_sha": "f00",
        "versions": {"rlhf_lab": "1.0"},
        "seed": 0,
        "needs": {"policy": {"recipe": "sft_roles", "key": "def"}},
    }
    policies = [{"name": name, "metrics": dict(values)} for name, values in metrics.items()]
    result = {"status": "completed", "error": None, "seconds": 1.0, "policies": policies, "metrics": {}}
    config = "agent: {programs: {react: {kind: react}}, llm: local, service: {}}\n"
    (directory / "manifest.json").write_text(json.dumps(manifest))
    (directory / "result.json").write_text(json.dumps(result))
    (directory / "config.yaml").write_text(config)
    for name, rows in (("trajectories.jsonl", attempts), ("evaluation.jsonl", evaluation)):
        (directory / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


def small_run(directory: Path) -> Path:
    """One agent, two tasks, two draws of one; one attempt under attack, and one whose sequence has no score."""
    question = "\n\nHuman: What is oslo?\n\nAssistant:"
    requested = turn(question, "Action: search[oslo]", [call("search", "busy", failed=True, entity="oslo")])
    stated = f"{question} Action: search[oslo]\n\nTool: busy\n\nAssistant:"
    wrong = turn(stated, "hm")
    corrected = turn(f"{stated} hm\n\nTool: write Answer:\n\nAssistant:", "Answer: OSLO")
    notes = turn("\n\nHuman: Note: busy\n\nAssistant:", "busy", agent="notes")
    attempts = [
        attempt("react", "oslo", 0, [requested, wrong, corrected], "OSLO", sandbox_level="namespaces"),
        attempt("react", "oslo", 1, [requested, notes], None, stop="turn_limit"),
        attempt("react", "bergen", 0, [turn("What is bergen?", "Answer: x")], "x"),
        attempt("react", "bergen", 0, [turn("What is bergen?", "Answer: x")], "x", attack="override"),
    ]
    evaluation = [
        scored(attempts[0], sequence_score=1.0, success=1.0),
        scored(attempts[1], sequence_score=None, success=0.0),
        scored(attempts[2], sequence_score=0.5, success=0.0),
        scored(attempts[3], sequence_score=0.5, success=0.0, injected=1.0),
    ]
    success = {"mean": 1 / 3, "low": 0.05, "high": 0.8, "n": 3, "clusters": 2, "level": 0.95, "unscored": 0}
    return write_agent_run(directory, attempts, evaluation, {"react": {"success": success}})
