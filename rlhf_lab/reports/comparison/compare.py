"""Compares two runs: the metrics of one policy each on the held-out prompts that both answered, paired by prompt.

Replies to one prompt are averaged first, because reply i of A and reply i of B are independent draws; a pair is one
prompt under two policies. Without shared prompts the test is unpaired, and a remark says why. Holm's adjustment runs
over all metrics that are tested; those that only share a name are not (`compare_scales`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.metrics import titled
from rlhf_lab.reports.comparison.scales import mismatches
from rlhf_lab.results.folders import find_run
from rlhf_lab.results.gains import PROMPT, policy_names, policy_of, prompt_means, scores
from rlhf_lab.results.rundir import Run, read_run
from rlhf_lab.statistics.inference import (
    Comparison,
    Estimate,
    clustered_mean,
    clustered_rate,
    holm,
    mcnemar_exact,
    paired_difference,
    unpaired_difference,
)
from rlhf_lab.studies.table import Row

LEAST_SHARED = 2
"""Prompts from which a paired test has a spread to go by."""
NO_TEST = Comparison(Estimate(math.nan, -math.inf, math.inf, 0, 0), math.nan, math.nan, "none")
"""Stands for the difference of two numbers that cannot be compared."""


@dataclass(frozen=True)
class Side:
    """One of two runs.

    Attributes:
        letter: "A" or "B".
        policy: the evaluated policy that stands for the run; None when the run evaluated none.
    """

    letter: str
    run: Run
    policy: str | None

    @property
    def name(self) -> str:
        return f"{self.letter} {self.policy or self.run.recipe}"

    @property
    def replies(self) -> pd.DataFrame:
        """The policy's scored replies to held-out prompts; empty when there are none."""
        rows = self.run.evaluation
        return rows[rows["policy"] == self.policy] if len(rows) else rows


@dataclass(frozen=True)
class Difference:
    """One metric of A and of B, and what tells them apart.

    Attributes:
        versus: B − A.
        p_holm: adjusted over all metrics (and levels) that are compared together.
        level: of two studies, the level that both have.
        tested: whether the two can be compared; else `versus` and `p_holm` hold NaN.
    """

    metric: str
    a: Estimate
    b: Estimate
    versus: Comparison
    p_holm: float = math.nan
    level: str = ""
    tested: bool = True

    @property
    def distinguishable(self) -> bool:
        return self.p_holm <= 0.05

    def row(self, name: str) -> Row:
        """B as a level of a study whose baseline is A, for the wording that studies use."""
        return Row(name, 1, self.b, self.versus, self.p_holm)


def find_sides(a: Path | str, b: Path | str, policy: str | None = None) -> tuple[Side, Side]:
    """Read two runs, or jobs of studies, and choose a policy of each: the run's own unless named.

    Args:
        policy: a policy that both evaluated, or one of A and one of B with a comma between.

    Raises:
        DataError: a folder is no run, a policy was not evaluated, or both sides are the same.
    """
    names: list[str | None] = [policy, policy]
    if policy is not None and "," in policy:
        names = [name.strip() for name in policy.split(",", 1)]
    folders = [find_run(folder) for folder in (a, b)]
    sides = []
    for letter, folder, name in zip("AB", folders, names, strict=True):
        run = read_run(folder)
        sides.append(Side(letter, run, _choose_policy(run, letter, name)))
    side_a, side_b = sides
    if folders[0].resolve() == folders[1].resolve() and side_a.policy == side_b.policy:
        other_policies = [name for name in policy_names(side_a.run) if name != side_a.policy]
        hint = ""
        if other_policies:
            hint = f"; compare two of its policies with policy='{other_policies[0]},{side_a.policy}'"
        raise DataError(f"A and B are the same run, {folders[0]}{hint}")
    return side_a, side_b


def _choose_policy(run: Run, letter: str, name: str | None) -> str | None:
    evaluated = policy_names(run)
    if name is None:
        return policy_of(run)
    if name not in evaluated:
        raise DataError(f"policy={name}: {letter} ({run.path}) evaluated {', '.join(evaluated) or 'no policy'}")
    return name


def run_differences(a: Side, b: Side) -> list[Difference]:
    """Every metric that both have reply by reply, in a fixed order; empty when a side has no replies."""
    rows_a, rows_b = a.replies, b.replies
    if rows_a.empty or rows_b.empty:
        return []
    shared = shared_prompts(rows_a, rows_b)
    paired = len(shared) >= LEAST_SHARED
    if paired:
        rows_a = rows_a.merge(shared, on=PROMPT)
        rows_b = rows_b.merge(shared, on=PROMPT)
    differences = []
    scale_mismatches = mismatches(a.run, b.run)
    for metric in _shared_metrics(rows_a, rows_b):
        values_a = _metric_values(rows_a, metric)
        values_b = _metric_values(rows_b, metric)
        tested = not any(mismatch.covers(metric) for mismatch in scale_mismatches)
        versus = NO_TEST
        if tested:
            test = _paired_by_prompt if paired else _unpaired_by_prompt
            versus = test(values_a, values_b)
        differences.append(
            Difference(metric, _estimate_mean(values_a), _estimate_mean(values_b), versus, tested=tested)
        )
    return adjust_p_values(differences)


def _metric_values(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """A row per reply: the columns of PROMPT, and the metric as `value`."""
    values = pd.to_numeric(scores(rows, metric), errors="coerce")
    return rows[PROMPT].assign(value=values.to_numpy(float))


def adjust_p_values(differences: Sequence[Difference]) -> list[Difference]:
    """The same with Holm's adjustment over all of them."""
    p_values = holm([difference.versus.p_value for difference in differences])
    return [
        dataclasses.replace(difference, p_holm=p_holm) for difference, p_holm in zip(differences, p_values, strict=True)
    ]


def shared_prompts(rows_a: pd.DataFrame, rows_b: pd.DataFrame) -> pd.DataFrame:
    """Prompts that both answered, one row each."""
    return rows_a[PROMPT].drop_duplicates().merge(rows_b[PROMPT].drop_duplicates(), on=PROMPT)


def _shared_metrics(rows_a: pd.DataFrame, rows_b: pd.DataFrame) -> list[str]:
    """Columns that hold scores on both sides: known metrics first, then terms of the reward that are not its total."""
    names = [name for name in titled() if name in rows_a and name in rows_b]
    columns = [str(name) for name in rows_a if name in rows_b]
    terms = [name for name in columns if name.startswith("reward/") and name not in names]
    scored = [name for name in [*names, *terms] if rows_a[name].notna().any() and rows_b[name].notna().any()]
    if not ("proxy" in rows_a and "proxy" in rows_b):
        return scored

    def repeats_proxy(name: str) -> bool:
        return name.startswith("reward/") and _is_whole_reward(rows_a, name) and _is_whole_reward(rows_b, name)

    return [name for name in scored if not repeats_proxy(name)]


def _is_whole_reward(rows: pd.DataFrame, term: str) -> bool:
    """Whether a term is the whole reward."""
    term_N, total_N = (pd.to_numeric(rows[name], errors="coerce").to_numpy(float) for name in (term, "proxy"))
    return bool(np.allclose(term_N, total_N, equal_nan=True))


def _paired_by_prompt(a: pd.DataFrame, b: pd.DataFrame) -> Comparison:
    """B − A over shared prompts; exact McNemar for outcomes of one reply per prompt, which are independent pairs."""
    means = [prompt_means(rows, ["value"]) for rows in (a, b)]
    means_B2 = pd.concat(means, axis=1, join="inner").to_numpy(float)
    a_B, b_B = means_B2[:, 0], means_B2[:, 1]
    comparison = paired_difference(b_B, a_B, np.arange(len(means_B2)))
    one_reply_per_prompt = not any(rows.duplicated(PROMPT).any() for rows in (a, b))
    if not (one_reply_per_prompt and _is_binary(a) and _is_binary(b)):
        return comparison
    only_a = int((a_B > b_B).sum())
    only_b = int((b_B > a_B).sum())
    test = f"exact McNemar test, {only_b} prompts only B, {only_a} only A"
    return dataclasses.replace(comparison, p_value=mcnemar_exact(only_b, only_a), test=test)


def _unpaired_by_prompt(a: pd.DataFrame, b: pd.DataFrame) -> Comparison:
    """B − A, each clustered by its own prompts."""
    return unpaired_difference(b["value"].to_numpy(), _prompt_numbers(b), a["value"].to_numpy(), _prompt_numbers(a))


def _estimate_mean(rows: pd.DataFrame) -> Estimate:
    estimator = clustered_rate if _is_binary(rows) else clustered_mean
    return estimator(rows["value"].to_numpy(), _prompt_numbers(rows))


def _prompt_numbers(rows: pd.DataFrame) -> np.ndarray:
    """(N,) the same number for replies to the same prompt."""
    return rows.groupby(PROMPT, sort=False).ngroup().to_numpy()


def _is_binary(rows: pd.DataFrame) -> bool:
    return bool(rows["value"].dropna().isin((0.0, 1.0)).all())
