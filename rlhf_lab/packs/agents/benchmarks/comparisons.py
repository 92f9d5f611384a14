"""Comparisons of agents on the same tasks: comparisons.json of a run, with one row per metric and pair of agents.

The tests are those of `statistics/paired_tasks.py`: paired by task, clustered by template.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_lab.core.files import read_json, write_json
from rlhf_lab.statistics.paired_tasks import compare_agents
from rlhf_lab.statistics.rows import outcomes_by

FILE = "comparisons.json"
Row = Mapping[str, Any]


def compare_rows(rows: Sequence[Row], metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Compare every pair of agents (later minus earlier), with Holm's adjustment over the pairs of each metric.

    Args:
        rows: rows of evaluation.jsonl, in the order of the agents.
        metrics: names of the metrics.
    """
    templates = {row["prompt_id"]: row["template"] for row in rows}
    # in the order of the run, which decides which agent is subtracted from which
    agents = list(dict.fromkeys(row["policy"] for row in rows))
    entries = []
    for metric in metrics:
        outcomes = {agent: by_task(rows, agent, metric) for agent in agents}
        # an agent may lack a metric, e.g. if none of its attempts were scored
        measured = {agent: tasks for agent, tasks in outcomes.items() if tasks}
        for found in compare_agents(measured, templates):
            entry = {"metric": metric, "first": found.first, "second": found.second, **found.comparison.to_dict()}
            # JSON has no NaN
            p_holm = None if math.isnan(found.adjusted_p) else found.adjusted_p
            entry |= {"p_holm": p_holm, "tasks": found.comparison.difference.n}
            entries.append(entry)
    return entries


def by_task(rows: Sequence[Row], agent: str, metric: str) -> dict[str, list[float]]:
    """Return task → the agent's scored attempts."""
    return outcomes_by([row for row in rows if row["policy"] == agent], "prompt_id", metric)


def write_comparisons(directory: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    write_json(directory / FILE, list(entries))


def read_comparisons(directory: Path) -> list[dict[str, Any]]:
    """Read the file of `write_comparisons`; empty if it does not exist."""
    entries = read_json(directory / FILE)
    return entries if isinstance(entries, list) else []
