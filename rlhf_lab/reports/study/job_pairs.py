"""Any two jobs of a study side by side: their settings, their numbers, and a test paired by prompt.

Tests are computed for all pairs if there are few enough; for the others the page shows the command.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import pandas as pd

from rlhf_lab.config.overrides import level_name
from rlhf_lab.core.arrays import IntArray
from rlhf_lab.results.wording import compact, judged_title, p_text, signed
from rlhf_lab.statistics.inference import Estimate, paired_difference
from rlhf_lab.studies.frame import Study

MAX_TESTS = 300
"""Maximum number of tests: about two seconds of work and 8 kB of page. With more pairs, fewer metrics are tested, the
primary one first."""


def job_pairs(
    study: Study, means: dict[int, pd.DataFrame], clusters: Mapping[tuple[Any, Any], str] | None = None
) -> dict[str, Any]:
    """Return what the page needs to show any two completed jobs.

    Args:
        means: job index → metrics of its last policy by prompt.
        clusters: id and text of a prompt → its cluster; a prompt without an entry is a cluster of its own.

    Returns:
        {"folder", "factors": [key], "metrics": [title], "jobs": [{"index", "settings": [text], "values": [text]}],
        "tests": {"i,j": [[B − A, p] or null per metric]}} where i < j are positions in `jobs` and A is the i-th; no
        jobs if fewer than two completed.
    """
    completed = study.completed.to_dict("records")
    if len(completed) < 2:
        return {"folder": str(study.path), "factors": [], "metrics": [], "jobs": [], "tests": {}}
    jobs = [
        {
            "index": job["index"],
            "settings": [level_name(job[factor]) for factor in study.factors],
            "values": [compact(_job_estimate(job, metric)) for metric in study.metrics],
        }
        for job in completed
    ]
    pairs = list(combinations(range(len(completed)), 2))
    tested_metrics = study.metrics[: MAX_TESTS // len(pairs)]
    tables = [_table_of_jobs(completed, means, metric) for metric in tested_metrics]
    cluster_numbers = [_cluster_numbers(table.index, clusters or {}) for table in tables]
    tests = {
        f"{i},{j}": [
            _paired_test(table, completed[i]["index"], completed[j]["index"], cluster_N)
            for table, cluster_N in zip(tables, cluster_numbers, strict=True)
        ]
        for i, j in pairs
    }
    return {
        "folder": str(study.path),
        "factors": list(study.factors),
        "metrics": [judged_title(metric, study.has_gold) for metric in study.metrics],
        "jobs": jobs,
        "tests": {pair: results for pair, results in tests.items() if any(results)},
    }


def _job_estimate(job: dict[Any, Any], metric: str) -> Estimate:
    count = int(job[f"{metric}/n"])
    low, high = job[f"{metric}/low"], job[f"{metric}/high"]
    return Estimate(job[metric], low, high, count, min(1, count))


def _table_of_jobs(jobs: list[dict[Any, Any]], means: dict[int, pd.DataFrame], metric: str) -> pd.DataFrame:
    """Return the means by prompt of the jobs that have the metric: a row per prompt (NaN if a job has none)."""
    indices = [job["index"] for job in jobs if metric in means.get(job["index"], ())]
    return pd.DataFrame({index: means[index][metric] for index in indices})  # the constructor aligns the prompts


def _cluster_numbers(prompts: pd.Index, clusters: Mapping[tuple[Any, Any], str]) -> IntArray:
    names = pd.Series([clusters.get(prompt, prompt) for prompt in prompts], dtype=object)
    return pd.factorize(names)[0]


def _paired_test(table: pd.DataFrame, a: int, b: int, cluster_N: IntArray) -> list[str] | None:
    """Return B − A over the prompts that both answered, and its p-value; None with fewer than two common clusters."""
    if a not in table or b not in table:
        return None
    comparison = paired_difference(table[b].to_numpy(float), table[a].to_numpy(float), cluster_N)
    if comparison.difference.clusters < 2:
        return None
    return [signed(comparison.difference), p_text(comparison.p_value)]
