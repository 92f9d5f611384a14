"""A study in memory: what `read_study` gives for a directory with the same numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from rlhf_lab.core.types import FloatArray
from rlhf_lab.studies.frame import COMPLETED, Study
from rlhf_lab.studies.replication import Replication

FACTOR = "algorithm.max_pairs"
"""The override that is compared; it stands for any."""
REDRAWN, GIVEN = Replication("redrawn"), Replication("given")
KEPT = Replication("kept", ("data.seed", "data.facts_seed"))


def build(
    values_LSM4: FloatArray,
    metrics: Sequence[str],
    levels: Sequence[int],
    replication: Replication,
    prompts: Mapping[int, pd.DataFrame] | None = None,
) -> Study:
    """A study of levels × seeds, its jobs in that order, the first level the baseline.

    Args:
        values_LSM4: (levels, seeds, metrics, 4) of every run: mean, low, high and n.
        prompts: job → its metrics by prompt, where prompts are shared.
    """
    count = values_LSM4.shape[1]
    jobs = len(levels) * count
    names = [str(level) for level in levels]
    columns: dict[str, object] = {"index": range(jobs), "status": COMPLETED, "error": "", "run": None, "changed": ""}
    for m, metric in enumerate(metrics):
        for position, suffix in enumerate(("", "/low", "/high", "/n")):
            column = values_LSM4[:, :, m, position].ravel()
            columns[metric + suffix] = column.astype(int) if suffix == "/n" else column
    columns["level"] = np.repeat(names, count)
    columns[FACTOR] = np.repeat(list(levels), count)
    columns["seed"] = np.tile(np.arange(count), len(levels))
    return Study(
        path=Path("study"),
        recipe="coverage",
        command="",
        question="",
        hypothesis=None,
        compare=FACTOR,
        baseline=names[0],
        metrics=tuple(metrics),
        primary=metrics[0],
        curves=None,
        by="",
        predicts=(),
        size="full",
        factors=(FACTOR, "seed"),
        frame=pd.DataFrame(columns),
        policies=pd.DataFrame(),
        gold_source="the true reward of a simulated world",
        replication=replication,
        prompts=prompts or {},
    )
