"""Selection of the jobs that are compared with each other within a study."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from rlhf_lab.config.overrides import level_name
from rlhf_lab.studies.frame import Study


def job_names(jobs: pd.DataFrame) -> list[str]:
    """Return the name of each job for readers: its seed, or its index in a study that sets no seeds."""
    kind = "seed" if "seed" in jobs else "job"
    column = jobs["seed"] if "seed" in jobs else jobs["index"]
    return [f"{kind} {value}" for value in column]


def seeds(jobs: pd.DataFrame) -> np.ndarray:
    """Return the seed of each job. Without seeds all jobs get the same value, because they are not independent."""
    if "seed" in jobs:
        return jobs["seed"].astype(str).to_numpy()
    return np.full(len(jobs), "the seed of all")


def partners(a: pd.DataFrame, b: pd.DataFrame, keys: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the jobs of `a` and of `b` that agree in all `keys`, row by row in the order of `a`.

    A job with several partners is repeated: its `index` is then not unique.
    """
    a = _with_partner_key(a, keys)
    b = _with_partner_key(b, keys)
    # Keep only `partner` and the row number (as `index`), because the jobs have another column named `index`.
    rows_a = a[["partner"]].reset_index()
    rows_b = b[["partner"]].reset_index()
    pairs = rows_a.merge(rows_b, on="partner", suffixes=("_a", "_b"))
    return a.loc[pairs["index_a"]], b.loc[pairs["index_b"]]


def _with_partner_key(jobs: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Return the jobs with a column `partner`, equal for jobs that agree in all `keys`; rows are numbered from 0."""
    jobs = jobs.reset_index(drop=True)
    values = [str([level_name(job[key]) for key in keys]) for job in jobs.to_dict("records")]
    return jobs.assign(partner=values)


def paired_jobs(study: Study, metric: str, level: str, versus: str | None = None) -> pd.DataFrame:
    """Return completed jobs of `level` (a) paired with those of level `versus` (b; the baseline by default).

    Pairs agree in every swept setting except the compared one.

    Returns:
        frame with columns a, b (values of the metric), index_a, index_b (jobs) and seed.
    """
    completed = study.completed
    keys = [factor for factor in study.factors if factor != study.compare]
    of_level = completed[completed["level"] == level]
    of_versus = completed[completed["level"] == (versus or study.baseline)]
    a, b = partners(of_level, of_versus, keys)
    columns: dict[str, object] = {"seed": seeds(a)}
    for side, jobs in (("a", a), ("b", b)):
        columns |= {side: jobs[metric].to_numpy(dtype=float), f"index_{side}": jobs["index"].to_numpy()}
    return pd.DataFrame(columns)
