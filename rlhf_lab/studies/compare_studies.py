"""Compares two studies level by level: the same level of the same factor in both, paired by seed.

Two jobs are partners when they agree in the level and in every other factor that both studies set, the seed first.
Where jobs have partners only those are compared; where none has, the test is unpaired over the jobs' seeds.
"""

from __future__ import annotations

import pandas as pd

from rlhf_lab.analysis.statistics import clustered_mean, paired_difference, unpaired_difference
from rlhf_lab.errors import DataError
from rlhf_lab.studies.compare import Difference, adjusted
from rlhf_lab.studies.frame import Study, level_name
from rlhf_lab.studies.pairing import seeds


def shared_levels(a: Study, b: Study) -> list[str]:
    """Levels that both have, in A's order. Raises DataError where the studies share none."""
    found = [level for level in a.levels if level in b.levels]
    if a.compare != b.compare or not found:
        raise DataError(
            f"A compares {a.compare} ({', '.join(a.levels)}) and B {b.compare} ({', '.join(b.levels)}): no level is in "
            f"both. Compare two of their jobs instead: {a.path}/jobs/0 {b.path}/jobs/0"
        )
    return found


def study_differences(a: Study, b: Study) -> list[Difference]:
    """B − A for every metric and level that both have, A's primary metric first; what a side did not score is left
    out."""
    levels = {level: compared_jobs(a, b, level) for level in shared_levels(a, b)}
    found = []
    for metric in (name for name in a.metrics if name in b.metrics):
        for level, (jobs_a, jobs_b, paired) in levels.items():
            sides = [(jobs[metric].to_numpy(dtype=float), seeds(jobs)) for jobs in (jobs_a, jobs_b)]
            mean_a, mean_b = (clustered_mean(*side) for side in sides)
            if mean_a.n and mean_b.n:
                (of_a, seeds_a), (of_b, seeds_b) = sides
                unpaired = None if paired else unpaired_difference(of_b, seeds_b, of_a, seeds_a)
                versus = unpaired or paired_difference(of_b, of_a, seeds_a)
                found.append(Difference(metric, mean_a, mean_b, versus, level=level))
    return adjusted(found)


def compared_jobs(a: Study, b: Study, level: str) -> tuple[pd.DataFrame, pd.DataFrame, bool]:
    """Completed jobs of one level in A and in B, and whether they are partners, row by row."""
    factors = [name for name in a.factors if name in b.factors and name != a.compare]
    sides = []
    for study in (a, b):
        jobs = study.completed[study.completed["level"] == level].reset_index(drop=True)
        keys = [str([level_name(value) for value in row]) for row in jobs[factors].itertuples(index=False)]
        sides.append(jobs.assign(partner=keys))
    places = [side[["partner"]].reset_index() for side in sides]
    pairs = places[0].merge(places[1], on="partner", suffixes=("_a", "_b"))
    if not factors or not len(pairs):
        return sides[0], sides[1], False
    return sides[0].loc[pairs["index_a"]], sides[1].loc[pairs["index_b"]], True
