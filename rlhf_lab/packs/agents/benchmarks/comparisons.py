"""Agents against each other on the same tasks: comparisons.json of a run, a row per metric and pair of agents.

The tests are those of `statistics/paired_tasks.py`: paired by task, clustered by template.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_lab.core.files import read_json, write_json
from rlhf_lab.statistics.paired_tasks import compare_agents

FILE = "comparisons.json"
Row = Mapping[str, Any]


def compare_rows(rows: Sequence[Row], metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Every pair of agents, the later minus the earlier, with Holm's adjustment over the pairs of each metric.

    Args:
        rows: of evaluation.jsonl, those of one agent together.
    """
    templates = {row["prompt_id"]: row["template"] for row in rows}
    agents = list(dict.fromkeys(row["policy"] for row in rows))
    entries = []
    for metric in metrics:
        outcomes = {agent: by_task(rows, agent, metric) for agent in agents}
        for found in compare_agents({agent: tasks for agent, tasks in outcomes.items() if tasks}, templates):
            entry = {"metric": metric, "first": found.first, "second": found.second, **found.comparison.to_dict()}
            p_holm = None if math.isnan(found.adjusted_p) else found.adjusted_p
            entries.append(entry | {"p_holm": p_holm, "tasks": found.shared_tasks})
    return entries


def by_task(rows: Sequence[Row], agent: str, metric: str) -> dict[str, list[float]]:
    """Task → the scored values of a metric, one per draw."""
    values: dict[str, list[float]] = {}
    for row in rows:
        if row["policy"] == agent and row.get(metric) is not None:
            values.setdefault(row["prompt_id"], []).append(float(row[metric]))
    return values


def write_comparisons(folder: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    write_json(folder / FILE, list(entries))


def read_comparisons(folder: Path) -> list[dict[str, Any]]:
    """What `write_comparisons` wrote; nothing where there is no such file."""
    entries = read_json(folder / FILE)
    return entries if isinstance(entries, list) else []
