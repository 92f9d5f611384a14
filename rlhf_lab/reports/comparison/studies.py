"""Compares two studies level by level: the same level of the same factor in both, paired by seed.

Two jobs are partners when they agree in the level, the seed and every other factor that both studies set. Where jobs
have partners only those are compared; where none has, the test is unpaired over the jobs' seeds. There is no test where
a study sets no seed, or where a job has several partners: those would count as independent runs and are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pandas as pd

from rlhf_lab.core.errors import DataError
from rlhf_lab.reports.comparison.compare import NO_TEST, Difference, adjusted
from rlhf_lab.statistics.inference import unpaired_difference
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.pairing import partners, seeds
from rlhf_lab.studies.replicates import jobs_difference, jobs_mean


def shared_levels(a: Study, b: Study) -> list[str]:
    """Levels that both have, in A's order. Raises DataError where the studies share none."""
    found = [level for level in a.levels if level in b.levels]
    if a.compare != b.compare or not found:
        raise DataError(
            f"A compares {a.compare} ({', '.join(a.levels)}) and B {b.compare} ({', '.join(b.levels)}): no level is in "
            f"both. Compare two of their jobs instead: {a.path}/jobs/0 {b.path}/jobs/0"
        )
    return found


@dataclass(frozen=True)
class Jobs:
    """Completed jobs of one level in A and in B.

    Attributes:
        test: "paired": they are partners, row by row. "unpaired": none has a partner. "none": they cannot be tested.
    """

    a: pd.DataFrame
    b: pd.DataFrame
    test: Literal["paired", "unpaired", "none"]


def study_differences(a: Study, b: Study) -> list[Difference]:
    """B − A for every metric and level that both have, A's primary metric first; what a side did not score is left
    out."""
    levels = {level: compared_jobs(a, b, level) for level in shared_levels(a, b)}
    found = []
    for metric in (name for name in a.metrics if name in b.metrics):
        for level, jobs in levels.items():
            means = jobs_mean(a, metric, jobs.a), jobs_mean(b, metric, jobs.b)
            if means[0].n and means[1].n:
                versus = NO_TEST
                if jobs.test == "paired":
                    versus = jobs_difference(metric, (b, jobs.b), (a, jobs.a))
                elif jobs.test == "unpaired":
                    of_a, of_b = (side[metric].to_numpy(dtype=float) for side in (jobs.a, jobs.b))
                    versus = unpaired_difference(of_b, seeds(jobs.b), of_a, seeds(jobs.a))
                found.append(Difference(metric, *means, versus, level=level, tested=jobs.test != "none"))
    return adjusted(found)


def compared_jobs(a: Study, b: Study, level: str) -> Jobs:
    """Completed jobs of one level in A and in B: the partners, or all where there are none."""
    shared = [name for name in a.factors if name in b.factors]
    sides = [study.completed[study.completed["level"] == level] for study in (a, b)]
    if "seed" not in shared:
        return Jobs(sides[0], sides[1], "none")
    pairs = partners(sides[0], sides[1], [name for name in shared if name != a.compare])
    if not len(pairs[0]):
        return Jobs(sides[0], sides[1], "unpaired")
    if not all(side["index"].is_unique for side in pairs):
        return Jobs(sides[0], sides[1], "none")
    return Jobs(pairs[0], pairs[1], "paired")
