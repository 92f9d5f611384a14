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
from rlhf_lab.reports.comparison.compare import NO_TEST, Difference, adjust_p_values
from rlhf_lab.reports.comparison.scales import TRUTHS, two_worlds_message
from rlhf_lab.results.rundir import TRUE_REWARD
from rlhf_lab.statistics.inference import unpaired_difference
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.pairing import partners, seeds
from rlhf_lab.studies.replicates import jobs_difference, jobs_mean


def shared_levels(a: Study, b: Study) -> list[str]:
    """Levels that both have, in A's order. Raises DataError where the studies share none."""
    levels = [level for level in a.levels if level in b.levels]
    if a.compare != b.compare or not levels:
        raise DataError(
            f"A compares {a.compare} ({', '.join(a.levels)}) and B {b.compare} ({', '.join(b.levels)}): no level is in "
            f"both. Compare two of their jobs instead: {a.path}/jobs/0 {b.path}/jobs/0"
        )
    return levels


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
    out. Raises DataError where a truth would be compared across worlds."""
    levels = {level: compared_jobs(a, b, level) for level in shared_levels(a, b)}
    for level, jobs in levels.items():
        _refuse_two_worlds(a, b, level, jobs)
    differences = []
    for metric in (name for name in a.metrics if name in b.metrics):
        for level, jobs in levels.items():
            mean_a = jobs_mean(a, metric, jobs.a)
            mean_b = jobs_mean(b, metric, jobs.b)
            if not (mean_a.n and mean_b.n):
                continue
            versus = NO_TEST
            if jobs.test == "paired":
                versus = jobs_difference(metric, (b, jobs.b), (a, jobs.a))
            elif jobs.test == "unpaired":
                a_N = jobs.a[metric].to_numpy(dtype=float)
                b_N = jobs.b[metric].to_numpy(dtype=float)
                versus = unpaired_difference(b_N, seeds(jobs.b), a_N, seeds(jobs.a))
            tested = jobs.test != "none"
            differences.append(Difference(metric, mean_a, mean_b, versus, level=level, tested=tested))
    return adjust_p_values(differences)


def _refuse_two_worlds(a: Study, b: Study, level: str, jobs: Jobs) -> None:
    """Raises DataError where the jobs of a level have truths of different worlds."""
    truths = [name for name in TRUTHS if name in a.metrics and name in b.metrics]
    if "gold" in truths and not a.gold_source == b.gold_source == TRUE_REWARD:
        truths.remove("gold")
    worlds_a, worlds_b = (
        sorted({study.worlds[index] for index in side["index"] if study.worlds.get(index)})
        for study, side in ((a, jobs.a), (b, jobs.b))
    )
    if truths and worlds_a and worlds_b and worlds_a != worlds_b:
        named_a, named_b = (
            (f"{letter} at {level}", " and ".join(worlds)) for letter, worlds in (("A", worlds_a), ("B", worlds_b))
        )
        raise DataError(two_worlds_message(named_a, named_b, truths))


def compared_jobs(a: Study, b: Study, level: str) -> Jobs:
    """Completed jobs of one level in A and in B: the partners, or all where there are none."""
    shared_factors = [name for name in a.factors if name in b.factors]
    jobs_a, jobs_b = (study.completed[study.completed["level"] == level] for study in (a, b))
    if "seed" not in shared_factors:
        return Jobs(jobs_a, jobs_b, "none")
    partners_a, partners_b = partners(jobs_a, jobs_b, [name for name in shared_factors if name != a.compare])
    if not len(partners_a):
        return Jobs(jobs_a, jobs_b, "unpaired")
    if not (partners_a["index"].is_unique and partners_b["index"].is_unique):
        return Jobs(jobs_a, jobs_b, "none")
    return Jobs(partners_a, partners_b, "paired")
