"""A run of a benchmark of agents as inspect's logs, one for each agent: `export RUN to=FOLDER`.

Reads trajectories.jsonl (what was done), evaluation.jsonl (its scores) and result.json (the run's numbers). A log's
means and intervals are those of result.json. Attempts under attack, which the run keeps out of its other numbers, are a
log of their own. Left out: inspect's events; the messages have all that was said.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml
from scipy import stats

from rlhf_lab.core.errors import OPTIONAL, DataError, MissingDependency
from rlhf_lab.core.files import make_folder, read_jsonl
from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import call_id
from rlhf_lab.data.transcript import to_messages
from rlhf_lab.packs.agents.benchmarks.metrics import DESCRIBED
from rlhf_lab.packs.agents.benchmarks.trajectory_log import FILE
from rlhf_lab.packs.agents.inspect.messages import tool_call, usage
from rlhf_lab.results.rundir import Run, read_run
from rlhf_lab.statistics.estimates import Estimate, floats
from rlhf_lab.statistics.inference import clustered_mean

Row = Mapping[str, Any]

COUNTED: tuple[str, ...] = ("tool_calls", "failed_calls", "model_turns", "extra_calls", "retried_calls")
COUNTED += ("agent_input_tokens", "agent_output_tokens", "agent_cost_usd", "agent_paid_usd")
COUNTED += ("agent_wall_s", "agent_latency_s")
"""Columns that say what an attempt took: metadata of a sample. All others are its scores."""
ELSEWHERE = ("trajectory", "sha256", "agent", "question", "expected")
"""What a row of trajectories.jsonl says that has a place of its own in a sample."""
STOP_REASONS = {"answered": "stop", "refused": "content_filter", "truncated": "max_tokens"}
"""Ends of an attempt that inspect has a word for; the others are `unknown`, and in the metadata."""


def export(folder: Path, to: Path) -> list[Path]:
    """Write a run's logs; the files.

    Raises:
        DataError: no completed run of a benchmark of agents, or its files disagree.
        MissingDependency: inspect is not installed.
    """
    try:
        from inspect_ai.log import EvalLog, write_eval_log
    except ImportError:
        raise MissingDependency(*OPTIONAL["inspect_ai"]) from None
    logs = run_logs(folder)
    make_folder(to)
    files = []
    for name, log in logs.items():
        file = to / f"{folder.resolve().name}-{name}.eval"
        write_eval_log(EvalLog.model_validate(log), str(file))
        files.append(file)
    return files


def run_logs(folder: Path) -> dict[str, dict[str, Any]]:
    """Name → inspect's EvalLog as plain data: an agent's name, with `-attacked` behind it for attempts under attack."""
    run = read_run(folder)
    attempts = {row["key"]: row for row in read_jsonl(folder / FILE)}
    if not attempts:
        raise DataError(f"{folder} holds no {FILE}; name a run of agent_bench, gaia or code_bench")
    if run.status != "completed" or run.changed:
        problem = f"{', '.join(run.changed)} changed since it completed" if run.changed else f"it is {run.status}"
        raise DataError(f"{folder} cannot be exported: {problem}; run its command again: {run.manifest.get('command')}")
    rows = read_jsonl(folder / "evaluation.jsonl")
    if missing := [row["prompt_id"] for row in rows if row["key"] not in attempts]:
        raise DataError(f"{folder / FILE} lacks {len(missing)} attempts, such as at {missing[0]}")
    logs = {}
    for policy in run.policies:
        own = [row for row in rows if row["policy"] == policy.name]
        calm = [row for row in own if not row.get("attack")]
        attacked = [row for row in own if row.get("attack")]
        if calm:
            logs[policy.name] = eval_log(run, policy.name, policy.name, calm, attempts, policy.metrics)
        if attacked:
            name = f"{policy.name}-attacked"
            logs[name] = eval_log(run, policy.name, name, attacked, attempts, {})
    return logs


def eval_log(
    run: Run, agent: str, name: str, rows: Sequence[Row], attempts: Mapping[str, Row], metrics: Mapping[str, Estimate]
) -> dict[str, Any]:
    """One agent's attempts as inspect's EvalLog.

    Args:
        rows: of evaluation.jsonl.
        attempts: rows of trajectories.jsonl by key.
        metrics: the run's estimates; those that it lacks are made from the rows.
    """
    model = model_name(run, agent)
    ids = unique_ids(rows)
    samples = [sample(row, attempts[row["key"]], id, model) for id, row in zip(ids, rows, strict=True)]
    columns = score_columns(rows)
    created = datetime.fromisoformat(str(run.manifest["created"])).isoformat()
    names = list(dict.fromkeys(ids))
    config = yaml.safe_load(run.config) or {}
    spec = {
        "created": created,
        "task": run.recipe if name == agent else f"{run.recipe}_attacked",
        "task_id": identifier(run, name, "task"),
        "eval_id": identifier(run, name, "eval"),
        "run_id": identifier(run, "", "run"),
        "dataset": {"name": run.recipe, "samples": len(names), "sample_ids": names, "shuffled": False},
        "model": model,
        "solver": agent,
        "solver_args": config.get("agent", {}).get("programs", {}).get(agent, {}),
        "config": {"epochs": max(entry["epoch"] for entry in samples)},
        "packages": {"rlhf_lab": str(run.manifest.get("versions", {}).get("rlhf_lab", ""))},
        "scorers": [{"name": column} for column in columns],
        "metadata": {key: run.manifest.get(key) for key in ("command", "question", "key", "seed", "git_sha")},
    }
    return {
        "version": 2,
        "status": "success",
        "eval": spec,
        "plan": {"name": agent, "steps": [{"solver": agent}]},
        "results": {
            "total_samples": len(samples),
            "completed_samples": len(samples),
            "scores": [score_summary(column, rows, metrics.get(column)) for column in columns],
        },
        "stats": {"started_at": created, "completed_at": created, "model_usage": {model: total_usage(samples, model)}},
        "samples": samples,
    }


def model_name(run: Run, agent: str) -> str:
    """Who answered an agent: `rlhf_lab/` and the recipe that made the model, or a service and its model."""
    settings = (yaml.safe_load(run.config) or {}).get("agent", {})
    llm = settings.get("llm", "local")
    if llm == "local":
        policy = run.manifest.get("needs", {}).get("policy", {})
        return f"rlhf_lab/{policy.get('recipe', agent)}"
    return f"{llm}/{settings.get('service', {}).get('model') or 'default'}"


def identifier(run: Run, *parts: str) -> str:
    """The same for the same run: exporting again replaces a log by itself."""
    return sha256("/".join([str(run.manifest.get("key")), *parts]).encode()).hexdigest()[:22]


def unique_ids(rows: Iterable[Row]) -> list[str]:
    """An id of each row's task, with the attack on it. A case that is asked again has a number behind it."""
    seen: set[tuple[str, int]] = set()
    ids = []
    for row in rows:
        name = f"{row['prompt_id']} [{row['attack']}]" if row.get("attack") else str(row["prompt_id"])
        id, number = name, 1
        while (id, row["sample_id"]) in seen:
            number += 1
            id = f"{name} #{number}"
        seen.add((id, row["sample_id"]))
        ids.append(id)
    return ids


def score_columns(rows: Sequence[Row]) -> list[str]:
    """Columns that are scores, success first."""
    columns = dict.fromkeys(name for row in rows for name in row if name not in (*DESCRIBED, *COUNTED))
    numbers = [name for name in columns if any(_is_number(row.get(name)) for row in rows)]
    return sorted(numbers, key=lambda name: name != "success")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def score_summary(column: str, rows: Sequence[Row], estimate: Estimate | None) -> dict[str, Any]:
    """inspect's EvalScore: mean, standard error and interval, clustered by template as in the run."""
    values_N: list[Any] = [row.get(column) for row in rows]
    own = clustered_mean(floats(values_N), [row["template"] for row in rows])
    estimate = estimate or own
    numbers = {"mean": estimate.mean, "low": estimate.low, "high": estimate.high, "stderr": standard_error(own)}
    metrics = {name: {"name": name, "value": value} for name, value in numbers.items() if math.isfinite(value)}
    return {
        "name": column,
        "scorer": column,
        "scored_samples": own.n,
        "unscored_samples": own.unscored,
        "metrics": metrics,
        "metadata": {"clusters": estimate.clusters, "level": estimate.level},
    }


def standard_error(mean: Estimate) -> float:
    """Of `clustered_mean`, from its t interval; infinite with one cluster."""
    if not mean.bounded:
        return math.inf
    return (mean.high - mean.mean) / float(stats.t.ppf((1 + mean.level) / 2, mean.clusters - 1))


def sample(row: Row, attempt: Row, id: str, model: str) -> dict[str, Any]:
    """One attempt as inspect's EvalSample."""
    trajectory = attempt["trajectory"]
    expected = attempt["expected"]
    answer = trajectory["answer"]
    scores = {name: row[name] for name in score_columns([row])}
    described = {name: row[name] for name in ("set", "category", "template", "attack", "stop") if name in row}
    # whatever else the attempt's row says, such as the level of the sandbox that it ran in
    others = {name: value for name, value in attempt.items() if name not in (*ELSEWHERE, *described)}
    tokens = usage(
        sum(turn["input_tokens"] for turn in trajectory["turns"]),
        sum(turn["output_tokens"] for turn in trajectory["turns"]),
        sum(turn["cost_usd"] for turn in trajectory["turns"]),
    )
    final = {"role": "assistant", "content": answer or "", "model": model}
    return {
        "id": id,
        "epoch": row["sample_id"] + 1,
        "input": attempt["question"],
        "target": "" if expected["answer"] is None else _as_text(expected["answer"]),
        "messages": list(messages(trajectory["turns"], model)),
        "output": {
            "model": model,
            "choices": [{"message": final, "stop_reason": STOP_REASONS.get(trajectory["stop"], "unknown")}],
            "usage": tokens,
            "time": trajectory["wall_s"],
            "error": trajectory["error"] or None,
        },
        "scores": {name: {"value": value, "answer": answer} for name, value in scores.items()},
        "metadata": {
            **described,
            **others,
            **{name: row[name] for name in COUNTED if name in row},
            "expected_calls": expected.get("calls", []),
        },
        "uuid": attempt["key"][:22],
        "model_usage": {model: tokens},
        "total_time": trajectory["wall_s"],
        "turn_count": len(trajectory["turns"]),
    }


def _as_text(answer: Any) -> str | list[str]:
    return [str(part) for part in answer] if isinstance(answer, list) else str(answer)


def messages(turns: Sequence[Row], model: str) -> Iterator[dict[str, Any]]:
    """The conversation of an attempt. Turns that read something else than what came before start with what they read:
    the parts of an agent, and notes in place of a history."""
    number = 0
    before: list[Message] = []
    prompt = None
    replies = 0  # results that followed the last turn and are here already
    for turn in turns:
        read = to_messages(turn["prompt"])
        goes_on = prompt is not None and turn["prompt"].startswith(prompt)
        # behind what the last turn read come that turn itself and the results of its calls
        new = read[len(before) + 1 + replies :] if goes_on else read
        for message in new:
            yield {"role": message["role"], "content": message["content"], "metadata": {"agent": turn["agent"]}}
        calls = [(call, call["id"] or call_id(number + place)) for place, call in enumerate(turn["calls"])]
        number += len(calls)
        yield {
            "role": "assistant",
            "content": turn["text"],
            "model": model,
            "source": "generate",
            "tool_calls": [tool_call(call["name"], call["arguments"], id) for call, id in calls] or None,
            "metadata": {"agent": turn["agent"], "stored": turn["stored"]},
        }
        for call, id in calls:
            error = {"type": "unknown", "message": call["result"]} if call["failed"] else None
            result = {"role": "tool", "content": call["result"], "function": call["name"]}
            yield {**result, "tool_call_id": id, "error": error}
        before, prompt, replies = read, turn["prompt"], len(calls)


def total_usage(samples: Iterable[Mapping[str, Any]], model: str) -> dict[str, Any]:
    """Tokens and cost of all samples."""
    totals: dict[str, float] = {}
    for entry in samples:
        for name, value in entry["model_usage"][model].items():
            totals[name] = totals.get(name, 0) + value
    return totals
