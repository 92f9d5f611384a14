"""Any two jobs of a study beside one another: their settings, their numbers, and a test paired by prompt.

Tests are computed for all pairs while there are few enough; the page names the command for everything else.
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
"""About two seconds of work and 8 kB of page. More pairs get tests of fewer metrics, the primary one first."""


def job_pairs(study: Study, means: dict[int, pd.DataFrame]) -> dict[str, Any]:
    """What the page needs to show any two completed jobs.

    Args:
        means: job index → its last policy's metrics by prompt.

    Returns:
        {"folder", "factors": [key], "metrics": [title], "jobs": [{"index", "settings": [text], "values": [text]}],
        "tests": {"i,j": [[B − A, p] or null per metric]}} with i < j positions in `jobs`, A the i-th; no jobs when
        fewer than two completed.
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
    count = int(job[f"{metric}/n"])
    return Estimate(job[metric], job[f"{metric}/low"], job[f"{metric}/high"], count, min(1, count))


def _values_by_job(jobs: list[dict[Any, Any]], means: dict[int, pd.DataFrame], metric: str) -> list[FloatArray | None]:
    """Per job its means by prompt, on the prompts of all jobs in one order (NaN where it has none)."""
    indices = [job["index"] for job in jobs]
    columns = {index: means[index][metric] for index in indices if index in means and metric in means[index]}
    table = pd.DataFrame(columns)  # aligns the prompts
    return [table[index].to_numpy(float) if index in table else None for index in indices]


def _paired_test(a: FloatArray | None, b: FloatArray | None) -> list[str] | None:
    """B − A over the prompts that both answered, and its p-value; None when they share fewer than two."""
    if a is None or b is None:
        return None
    comparison = paired_difference(b, a, np.arange(len(a)))
    if comparison.difference.clusters < 2:
        return None
    return [signed(comparison.difference), p_text(comparison.p_value)]
