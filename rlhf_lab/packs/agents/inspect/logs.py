"""Export of a run of an agent benchmark as inspect logs, one for each agent: `export RUN to=DIR`.

The input is trajectories.jsonl (the trajectories), evaluation.jsonl (their scores) and result.json (the metrics). The
means and intervals of a log are those of result.json. Attempts under attack, which the run's other metrics exclude, get
a separate log. inspect's events are not written; the messages contain all text.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from scipy import stats

from rlhf_lab.core.errors import OPTIONAL, DataError, MissingDependency
from rlhf_lab.core.files import make_dir, read_jsonl
from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import call_id
from rlhf_lab.data.transcript import to_messages
from rlhf_lab.packs.agents.benchmarks.metrics import COUNTED, DESCRIBED
from rlhf_lab.packs.agents.benchmarks.trajectory_log import FILE
from rlhf_lab.packs.agents.harness.agent import REFERENCE
from rlhf_lab.packs.agents.inspect.messages import tool_call, usage
from rlhf_lab.results.rundir import StoredRun, read_run
from rlhf_lab.statistics.estimates import Estimate, floats
from rlhf_lab.statistics.inference import clustered_mean

Row = Mapping[str, Any]

ELSEWHERE = ("trajectory", "sha256", "agent", "question", "expected")
"""Columns of trajectories.jsonl that have a separate field in a sample."""
MANIFEST_KEYS = ("command", "question", "key", "seed", "git_sha")
"""Keys of manifest.json that become metadata of a log."""
STOP_REASONS = {"answered": "stop", "refused": "content_filter", "truncated": "max_tokens"}
"""Stop reasons that inspect has a name for; all others become `unknown`, and are in the metadata."""


def export(directory: Path, to: Path) -> list[Path]:
    """Write the logs of a run and return their files.

    Raises:
        DataError: this is not a completed run of an agent benchmark, or its files disagree.
        MissingDependency: inspect is not installed.
    """
    try:
        from inspect_ai.log import EvalLog, write_eval_log
    except ImportError:
        raise MissingDependency(*OPTIONAL["inspect_ai"]) from None
    logs = run_logs(directory)
    make_dir(to)
    files = []
    for name, log in logs.items():
        file = to / f"{directory.resolve().name}-{name}.eval"
        write_eval_log(EvalLog.model_validate(log), str(file))
        files.append(file)
    return files


def run_logs(directory: Path) -> dict[str, dict[str, Any]]:
    """Return name → inspect's EvalLog as a dict. The name is the agent's, with `-attacked` if it was under attack."""
    run = read_run(directory)
    attempts = {row["key"]: row for row in read_jsonl(directory / FILE)}
    if not attempts:
        raise DataError(f"{directory} has no {FILE}; choose a run of agent_bench, gaia or code_bench")
    if run.status != "completed" or run.changed:
        problem = f"{', '.join(run.changed)} changed since its completion" if run.changed else f"it is {run.status}"
        command = run.manifest.get("command")
        raise DataError(f"{directory} cannot be exported: {problem}; repeat its command: {command}")
    rows = read_jsonl(directory / "evaluation.jsonl")
    if missing := [row["prompt_id"] for row in rows if row["key"] not in attempts]:
        raise DataError(
            f"{directory / FILE} lacks {len(missing)} attempts, e.g. at {missing[0]}; repeat the run's command"
        )
    logs = {}
    for policy in run.policies:
        own = [row for row in rows if row["policy"] == policy.name]
        benign = [row for row in own if not row.get("attack")]
        attacked = [row for row in own if row.get("attack")]
        if benign:
            logs[policy.name] = eval_log(run, policy.name, policy.name, benign, attempts, policy.metrics)
        if attacked:
            # The run's metrics exclude attempts under attack, so the estimates come from the rows.
            name = f"{policy.name}-attacked"
            logs[name] = eval_log(run, policy.name, name, attacked, attempts, {})
    return logs


def eval_log(
    run: StoredRun,
    agent: str,
    name: str,
    rows: Sequence[Row],
    attempts: Mapping[str, Row],
    metrics: Mapping[str, Estimate],
) -> dict[str, Any]:
    """Convert one agent's attempts to inspect's EvalLog.

    Args:
        run: the run.
        agent: name of the agent.
        name: name of the log.
        rows: rows of evaluation.jsonl.
        attempts: rows of trajectories.jsonl by key.
        metrics: estimates of the run; missing ones are computed from the rows.
    """
    model = model_name(run, agent)
    ids = unique_ids(rows)
    samples = [sample(row, attempts[row["key"]], id, model) for id, row in zip(ids, rows, strict=True)]
    columns = score_columns(rows)
    # One moment stands for start and end, because an attempt may come from an earlier run.
    created = datetime.fromisoformat(str(run.manifest["created"])).isoformat()
    programs = run.settings.get("agent", {}).get("programs", {})
    versions = run.manifest.get("versions", {})
    names = list(dict.fromkeys(ids))
    spec = {
        "created": created,
        "task": run.recipe if name == agent else f"{run.recipe}_attacked",
        "task_id": identifier(run, name, "task"),
        "eval_id": identifier(run, name, "eval"),
        "run_id": identifier(run, "", "run"),
        "dataset": {"name": run.recipe, "samples": len(names), "sample_ids": names, "shuffled": False},
        "model": model,
        "solver": agent,
        "solver_args": programs.get(agent.removesuffix(REFERENCE), {}),
        "config": {"epochs": max(entry["epoch"] for entry in samples)},
        "packages": {"rlhf_lab": str(versions.get("rlhf_lab", ""))},
        "scorers": [{"name": column} for column in columns],
        "metadata": {key: run.manifest.get(key) for key in MANIFEST_KEYS},
    }
    results = {
        "total_samples": len(samples),
        "completed_samples": len(samples),
        "scores": [score_summary(column, rows, metrics.get(column)) for column in columns],
    }
    stats_of_run = {"started_at": created, "completed_at": created, "model_usage": {model: total_usage(samples, model)}}
    return {
        "version": 2,
        "status": "success",
        "eval": spec,
        "plan": {"name": agent, "steps": [{"solver": agent}]},
        "results": results,
        "stats": stats_of_run,
        "samples": samples,
    }


def model_name(run: StoredRun, agent: str) -> str:
    """Return the name of an agent's model: `rlhf_lab/` and its recipe or location, or the service and its model."""
    settings = run.settings.get("agent", {})
    llm = settings.get("llm", "local")
    if llm == "local":
        role = "reference" if agent.endswith(REFERENCE) else "policy"
        model = run.manifest.get("needs", {}).get(role, {})
        # a model that no recipe of this run trained has a directory or a hub id only
        return f"rlhf_lab/{model.get('recipe') or model.get('dir') or agent}"
    service_model = settings.get("service", {}).get("model") or "default"
    return f"{llm}/{service_model}"


def identifier(run: StoredRun, *parts: str) -> str:
    """Return an identifier that is the same for the same run, so that a repeated export replaces its logs."""
    text = "/".join([str(run.manifest.get("key")), *parts])
    return sha256(text.encode()).hexdigest()[:22]  # as long as the identifiers that inspect makes itself


def unique_ids(rows: Iterable[Row]) -> list[str]:
    """Return a unique id for each row, from its task and attack. Repeated cases get a number."""
    seen: set[tuple[str, int]] = set()
    ids = []
    for row in rows:
        name = str(row["prompt_id"])
        if row.get("attack"):
            name = f"{name} [{row['attack']}]"
        id, number = name, 1
        # A regression case may repeat an attack on the same task; inspect needs unique (id, epoch).
        while (id, row["sample_id"]) in seen:
            number += 1
            id = f"{name} #{number}"
        seen.add((id, row["sample_id"]))
        ids.append(id)
    return ids


def score_columns(rows: Sequence[Row]) -> list[str]:
    """Return the columns that are scores, with `success` first."""
    columns = dict.fromkeys(name for row in rows for name in row)
    scored = [name for name in columns if name not in DESCRIBED and name not in COUNTED]
    # A column may be null in some rows, e.g. in those that are unscored.
    numbers = [name for name in scored if any(isinstance(row.get(name), int | float) for row in rows)]
    return sorted(numbers, key=lambda name: name != "success")  # stable: the others keep their order


def score_summary(column: str, rows: Sequence[Row], estimate: Estimate | None) -> dict[str, Any]:
    """Return inspect's EvalScore: mean, standard error and interval, clustered by template as in the run."""
    values_N: list[Any] = [row.get(column) for row in rows]
    templates = [row["template"] for row in rows]
    own = clustered_mean(floats(values_N), templates)
    estimate = estimate or own
    numbers = {"mean": estimate.mean, "low": estimate.low, "high": estimate.high, "stderr": standard_error(own)}
    # JSON has no infinity.
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
    """Return the standard error of a `clustered_mean`, from its t interval; infinite with one cluster."""
    if not mean.bounded:
        return math.inf
    # The half-width of the interval is the t quantile times the standard error.
    quantile = stats.t.ppf((1 + mean.level) / 2, mean.clusters - 1)
    return (mean.high - mean.mean) / float(quantile)


def sample(row: Row, attempt: Row, id: str, model: str) -> dict[str, Any]:
    """Convert one attempt to inspect's EvalSample."""
    trajectory, expected = attempt["trajectory"], attempt["expected"]
    turns, answer = trajectory["turns"], trajectory["answer"]
    scores = {name: row[name] for name in score_columns([row])}
    described = {name: row[name] for name in ("set", "category", "template", "attack", "stop") if name in row}
    # All other columns of the attempt, such as the isolation level of its sandbox, become metadata.
    others = {name: value for name, value in attempt.items() if name not in (*ELSEWHERE, *described)}
    counted = {name: row[name] for name in COUNTED if name in row}
    tokens = usage(
        sum(turn["input_tokens"] for turn in turns),
        sum(turn["output_tokens"] for turn in turns),
        sum(turn["cost_usd"] for turn in turns),
    )
    final = {"role": "assistant", "content": answer or "", "model": model}
    stop_reason = STOP_REASONS.get(trajectory["stop"], "unknown")
    return {
        "id": id,
        "epoch": row["sample_id"] + 1,  # inspect counts epochs from 1
        "input": attempt["question"],
        "target": "" if expected["answer"] is None else str(expected["answer"]),
        "messages": list(messages(turns, model)),
        "output": {
            "model": model,
            "choices": [{"message": final, "stop_reason": stop_reason}],
            "usage": tokens,
            "time": trajectory["wall_s"],
            "error": trajectory["error"] or None,
        },
        "scores": {name: {"value": value, "answer": answer} for name, value in scores.items()},
        "metadata": {**described, **others, **counted, "expected_calls": expected.get("calls", [])},
        "uuid": attempt["key"][:22],
        "model_usage": {model: tokens},
        "total_time": trajectory["wall_s"],
        "turn_count": len(turns),
    }


def messages(turns: Sequence[Row], model: str) -> Iterator[dict[str, Any]]:
    """Yield the conversation of an attempt as inspect's messages.

    If the prompt of a turn does not continue the previous conversation, the entire prompt is yielded before the turn.
    This happens for agents with several parts, and for agents that keep notes instead of a conversation.
    """
    number = 0
    before: list[Message] = []
    prompt = None
    responses = 0  # number of tool results after the last turn that were already yielded
    for turn in turns:
        read = to_messages(turn["prompt"])
        continues = prompt is not None and turn["prompt"].startswith(prompt)
        # The prompt continues the last one with the last turn (+ 1) and its results, which were already yielded.
        new = read[len(before) + 1 + responses :] if continues else read
        speaker = {"agent": turn["agent"]}
        for message in new:
            yield {"role": message["role"], "content": message["content"], "metadata": speaker}
        # Calls written as text have no id, but inspect links each result to its call by one.
        calls = [(call, call["id"] or call_id(number + position)) for position, call in enumerate(turn["calls"])]
        number += len(calls)
        tool_calls = [tool_call(call["name"], call["arguments"], id) for call, id in calls]
        yield {
            "role": "assistant",
            "content": turn["text"],
            "model": model,
            "source": "generate",
            "tool_calls": tool_calls or None,
            "metadata": {**speaker, "stored": turn["stored"]},
        }
        for call, id in calls:
            yield {
                "role": "tool",
                "content": call["result"],
                "function": call["name"],
                "tool_call_id": id,
                "error": {"type": "unknown", "message": call["result"]} if call["failed"] else None,
            }
        before, prompt, responses = read, turn["prompt"], len(calls)


def total_usage(samples: Iterable[Mapping[str, Any]], model: str) -> dict[str, Any]:
    """Sum the tokens and costs of all samples."""
    totals: Counter[str] = Counter()
    for entry in samples:
        totals.update(entry["model_usage"][model])
    return dict(totals)
