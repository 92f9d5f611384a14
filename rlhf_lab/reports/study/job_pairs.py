"""Any two jobs of a study side by side: their settings, their numbers, and a test paired by prompt.

Tests are computed for all pairs if there are few enough; for the others the page shows the command.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from rlhf_lab.config.overrides import level_name
from rlhf_lab.core.types import FloatArray
from rlhf_lab.results.wording import compact, judged_title, p_text, signed
from rlhf_lab.statistics.inference import Estimate, paired_difference
from rlhf_lab.studies.frame import Study

MAX_TESTS = 300
"""Maximum number of tests: about two seconds of work and 8 kB of page. With more pairs, fewer metrics are tested, the
primary one first."""


def job_pairs(study: Study, means: dict[int, pd.DataFrame]) -> dict[str, Any]:
    """Return what the page needs to show any two completed jobs.

    Args:
        study: the study.
        means: job index → metrics of its last policy by prompt.

    Returns:
        {"folder", "factors": [key], "metrics": [title], "jobs": [{"index", "settings": [text], "values": [text]}],
        "tests": {"i,j": [[B − A, p] or null per metric]}} where i < j are positions in `jobs` and A is the i-th; no
        jobs if fewer than two completed.
    """
    completed = study.completed.to_dict("records")
    if len(completed) < 2:
        return {
            "folder": str(study.path),
            "factors": [],
            "metrics": [],
            "jobs": [],
            "tests": {},
        }
    jobs = [
        {
            "index": job["index"],
            "settings": [level_name(job[factor]) for factor in study.factors],
            "values": [compact(_job_estimate(job, metric)) for metric in study.metrics],
        }
        for job in completed
    ]
    pairs = list(combinations(range(len(completed)), 2))
    # With more pairs fewer metrics are tested, so that MAX_TESTS is never exceeded.
    tested_metrics = study.metrics[: MAX_TESTS // len(pairs)]
    values_by_metric = [_values_by_job(completed, means, metric) for metric in tested_metrics]
    tests = {}
    for i, j in pairs:
        tests[f"{i},{j}"] = [_paired_test(values_by_job[i], values_by_job[j]) for values_by_job in values_by_metric]
    return {
        "folder": str(study.path),
        "factors": list(study.factors),
        "metrics": [judged_title(metric, study.has_gold) for metric in study.metrics],
        "jobs": jobs,
        "tests": {pair: results for pair, results in tests.items() if any(results)},
    }


def _job_estimate(job: dict[Any, Any], metric: str) -> Estimate:
    """Return a job's stored estimate of a metric."""
    count = int(job[f"{metric}/n"])
    low, high = job[f"{metric}/low"], job[f"{metric}/high"]
    return Estimate(job[metric], low, high, count, min(1, count))


def _values_by_job(jobs: list[dict[Any, Any]], means: dict[int, pd.DataFrame], metric: str) -> list[FloatArray | None]:
    """Return each job's means by prompt, on the prompts of all jobs in one order (NaN if a job has none)."""
    indices = [job["index"] for job in jobs]
    columns = {}
    for index in indices:
        if index in means and metric in means[index]:
            columns[index] = means[index][metric]
    table = pd.DataFrame(columns)  # the constructor aligns the prompts
    return [table[index].to_numpy(float) if index in table else None for index in indices]


def _paired_test(a: FloatArray | None, b: FloatArray | None) -> list[str] | None:
    """Return B − A over the prompts that both answered, and its p-value; None with fewer than two common prompts."""
    if a is None or b is None:
        return None
    comparison = paired_difference(b, a, np.arange(len(a)))
    if comparison.difference.clusters < 2:
        return None
    return [signed(comparison.difference), p_text(comparison.p_value)]
