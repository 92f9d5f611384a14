"""Comparison of two studies level by level: the same level of the same factor in both, paired by seed.

Two jobs are partners if they agree in the level, the seed and every other factor that both studies set. If some jobs
have partners, only those are compared; if none has, the test is unpaired over the jobs' seeds. There is no test if a
study sets no seed, or if a job has several partners: these would count as independent runs although they are not.
Metrics of two rewards or two sources of gold are not tested either.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from rlhf_lab.core.errors import DataError
from rlhf_lab.reports.comparison.compare import NO_TEST, Difference, adjust_p_values
from rlhf_lab.reports.comparison.scales import TRUTHS, two_worlds_message
from rlhf_lab.results.rundir import TRUE_REWARD, read_run
from rlhf_lab.results.scales import scale_identity
from rlhf_lab.statistics.inference import unpaired_difference
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.pairing import partners, seeds
from rlhf_lab.studies.replicates import jobs_difference, jobs_mean


def shared_levels(a: Study, b: Study) -> list[str]:
    """Return the levels that both studies have, in the order of A. Raise DataError if there are none."""
    levels = [level for level in a.levels if level in b.levels]
    if a.compare != b.compare or not levels:
        raise DataError(
            f"A compares {a.compare} ({', '.join(a.levels)}) and B {b.compare} ({', '.join(b.levels)}), so they share "
            f"no level. Compare two of their jobs instead: {a.path}/jobs/0 {b.path}/jobs/0"
        )
    return levels


def shared_metrics(a: Study, b: Study) -> list[str]:
    return [name for name in a.metrics if name in b.metrics]


@dataclass(frozen=True)
class Jobs:
    """Completed jobs of one level in A and in B.

    Attributes:
        test: "paired" if they are partners, row by row; "unpaired" if none has a partner; "none" if they cannot be
            tested.
    """

    a: pd.DataFrame
    b: pd.DataFrame
    test: Literal["paired", "unpaired", "none"]


def study_differences(a: Study, b: Study) -> list[Difference]:
    """Compute B − A for every metric and level that both studies have, A's primary metric first.

    Levels without a score on one side are left out. Raise DataError if gold would be compared across worlds.
    """
    levels = {level: compared_jobs(a, b, level) for level in shared_levels(a, b)}
    metrics = shared_metrics(a, b)
    untested = {level: other_scales(jobs, metrics) for level, jobs in levels.items()}
    for level, jobs in levels.items():
        _refuse_two_worlds(a, b, level, jobs)
    differences = []
    for metric in metrics:
        for level, jobs in levels.items():
            mean_a = jobs_mean(a, metric, jobs.a)
            mean_b = jobs_mean(b, metric, jobs.b)
            if not (mean_a.n and mean_b.n):
                continue
            versus = NO_TEST
            tested = jobs.test != "none" and metric not in untested[level]
            if tested and jobs.test == "paired":
                versus = jobs_difference(metric, (b, jobs.b), (a, jobs.a))
            elif tested:
                a_N = jobs.a[metric].to_numpy(dtype=float)
                b_N = jobs.b[metric].to_numpy(dtype=float)
                versus = unpaired_difference(b_N, seeds(jobs.b), a_N, seeds(jobs.a))
            differences.append(Difference(metric, mean_a, mean_b, versus, level=level, tested=tested))
    return adjust_p_values(differences)


def _refuse_two_worlds(a: Study, b: Study, level: str, jobs: Jobs) -> None:
    """Raise DataError if the jobs of a level have metrics of `TRUTHS` from different worlds."""
    truths = [name for name in TRUTHS if name in shared_metrics(a, b)]
    # The scores of a reward model are comparable across worlds; the true reward of a world is not.
    if "gold" in truths and not a.gold_source == b.gold_source == TRUE_REWARD:
        truths.remove("gold")
    worlds_a, worlds_b = (
        sorted({study.worlds[index] for index in of_side["index"] if study.worlds.get(index)})
        for study, of_side in ((a, jobs.a), (b, jobs.b))
    )
    if truths and worlds_a and worlds_b and worlds_a != worlds_b:
        named_a, named_b = (f"A at {level}", " and ".join(worlds_a)), (f"B at {level}", " and ".join(worlds_b))
        raise DataError(two_worlds_message(named_a, named_b, truths))


def other_scales(jobs: Jobs, metrics: Iterable[str]) -> list[str]:
    """Return the metrics that the jobs of a level measure by different rewards or sources of gold in A and in B."""
    if jobs.a.empty or jobs.b.empty:
        return []
    # The jobs of a level differ in nothing but the seed and other swept settings, so one of them stands for all.
    first_a, first_b = (read_run(side["run"].iloc[0]) for side in (jobs.a, jobs.b))
    scales = {metric: [scale_identity(run, metric, by_recipe=True) for run in (first_a, first_b)] for metric in metrics}
    # an identity is empty if the run does not record it
    return [metric for metric, (of_a, of_b) in scales.items() if of_a and of_b and of_a != of_b]


def compared_jobs(a: Study, b: Study, level: str) -> Jobs:
    """Return the completed jobs of one level in A and in B: the partners, or all jobs if there are none."""
    shared_factors = [name for name in a.factors if name in b.factors]
    jobs_a = a.completed[a.completed["level"] == level]
    jobs_b = b.completed[b.completed["level"] == level]
    if "seed" not in shared_factors:
        return Jobs(jobs_a, jobs_b, "none")
    other_factors = [name for name in shared_factors if name != a.compare]
    partners_a, partners_b = partners(jobs_a, jobs_b, other_factors)
    if not len(partners_a):
        return Jobs(jobs_a, jobs_b, "unpaired")
    # Repeated partners of one job would count as independent runs.
    if not (partners_a["index"].is_unique and partners_b["index"].is_unique):
        return Jobs(jobs_a, jobs_b, "none")
    return Jobs(partners_a, partners_b, "paired")
