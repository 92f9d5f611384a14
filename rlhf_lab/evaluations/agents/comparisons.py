"""Agents against each other on the same tasks: comparisons.json of a run, a row per metric and pair of agents.

A pair is one task under two agents; draws of a task are averaged first, since draw i of one agent and draw i of the
other are independent. Tasks of one template are not independent, so the t test clusters by template. Where every task
is a template of its own and was tried once with an outcome of 0 or 1, the p-value is that of the exact McNemar test.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_lab.core.files import read_json, write_json
from rlhf_lab.statistics.estimates import Comparison
from rlhf_lab.statistics.inference import holm, least_sd_of_outcomes, mcnemar_exact, paired_difference

FILE = "comparisons.json"
Row = Mapping[str, Any]


def compare_agents(rows: Sequence[Row], metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Every pair of agents, the later minus the earlier, with Holm's adjustment over the pairs of each metric.

    Args:
        rows: of evaluation.jsonl.
    """
    agents = list(dict.fromkeys(row["policy"] for row in rows))
    entries = []
    for metric in metrics:
        compared = {(a, b): compare(rows, a, b, metric) for a, b in combinations(agents, 2)}
        found = {pair: comparison for pair, comparison in compared.items() if comparison is not None}
        adjusted = holm([comparison.p_value for comparison in found.values()])
        for ((a, b), comparison), p_holm in zip(found.items(), adjusted, strict=True):
            entries.append(
                {
                    "metric": metric,
                    "first": a,
                    "second": b,
                    **comparison.to_dict(),
                    "p_holm": None if math.isnan(p_holm) else p_holm,
                    "tasks": comparison.difference.n,
                }
            )
    return entries


def compare(rows: Sequence[Row], first: str, second: str, metric: str) -> Comparison | None:
    """Mean of a metric of the second agent minus that of the first; None where no task has both."""
    templates = {row["prompt_id"]: row["template"] for row in rows}
    a, b = _by_task(rows, first, metric), _by_task(rows, second, metric)
    tasks = [task for task in a if task in b]
    if not tasks:
        return None
    a_N = np.array([np.mean(a[task]) for task in tasks])
    b_N = np.array([np.mean(b[task]) for task in tasks])
    is_binary = bool(np.isin([*a_N, *b_N], (0.0, 1.0)).all())
    least_sd_N = least_sd_of_outcomes(b_N, a_N) if is_binary else None
    clusters = [templates[task] for task in tasks]
    comparison = paired_difference(b_N, a_N, clusters, least_sd_N=least_sd_N)
    tried_once = all(len(side[task]) == 1 for side in (a, b) for task in tasks)
    if not (tried_once and is_binary and len(set(clusters)) == len(tasks) > 1):
        return comparison
    only_a, only_b = int((a_N > b_N).sum()), int((b_N > a_N).sum())
    test = f"exact McNemar test, {only_b} tasks only the second, {only_a} only the first"
    return dataclasses.replace(comparison, p_value=mcnemar_exact(only_b, only_a), test=test)


def _by_task(rows: Sequence[Row], agent: str, metric: str) -> dict[str, list[float]]:
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
