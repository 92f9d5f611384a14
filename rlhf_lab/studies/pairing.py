"""Which jobs are compared with which, within a study and across two."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from rlhf_lab.config.overrides import level_name
from rlhf_lab.studies.frame import Study


def seeds(jobs: pd.DataFrame) -> np.ndarray:
    """The seed of each job. Jobs of a study that sets none share one, and are no independent runs."""
    return jobs["seed"].astype(str).to_numpy() if "seed" in jobs else np.full(len(jobs), "the seed of all")


def partners(a: pd.DataFrame, b: pd.DataFrame, keys: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Jobs of `a` and of `b` that agree in all `keys`, row by row in a's order.

    A job with several partners is there several times, so that its row count tells.
    """
    sides = [
        jobs.assign(partner=[str([level_name(job[key]) for key in keys]) for job in jobs.to_dict("records")])
        for jobs in (a.reset_index(drop=True), b.reset_index(drop=True))
    ]
    places = [side[["partner"]].reset_index() for side in sides]
    pairs = places[0].merge(places[1], on="partner", suffixes=("_a", "_b"))
    return sides[0].loc[pairs["index_a"]], sides[1].loc[pairs["index_b"]]


def paired_jobs(study: Study, metric: str, level: str, versus: str | None = None) -> pd.DataFrame:
    """Completed jobs of `level` (a) beside their twins of level `versus`, the baseline unless given (b).

    Columns: a, b, index_a, index_b, seed.
    """
    done, keys = study.completed, [factor for factor in study.factors if factor != study.compare]
    a, b = partners(done[done["level"] == level], done[done["level"] == (versus or study.baseline)], keys)
    columns: dict[str, object] = {"seed": seeds(a)}
    for side, jobs in (("a", a), ("b", b)):
        columns |= {side: jobs[metric].to_numpy(dtype=float), f"index_{side}": jobs["index"].to_numpy()}
    return pd.DataFrame(columns)
