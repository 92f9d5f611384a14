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
from rlhf_lab.results.gains import PROMPT, policy_names, prompt_means, scores
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
    """Read two runs, or jobs of studies, and choose a policy of each: the last one unless named.

    Args:
        policy: a policy that both evaluated, or one of A and one of B with a comma between.

    Raises:
        DataError: a folder is no run, a policy was not evaluated, or both sides are the same.
    """
    names = [policy, policy] if policy is None or "," not in policy else [n.strip() for n in policy.split(",", 1)]
    folders = [find_run(folder) for folder in (a, b)]
    sides = [
        Side(letter, run := read_run(folder), _policy(run, letter, name))
        for letter, folder, name in zip("AB", folders, names, strict=True)
    ]
    if folders[0].resolve() == folders[1].resolve() and sides[0].policy == sides[1].policy:
        others = [name for name in policy_names(sides[0].run) if name != sides[0].policy]
        hint = f"; compare two of its policies with policy='{others[0]},{sides[0].policy}'" if others else ""
        raise DataError(f"A and B are the same run, {folders[0]}{hint}")
    return sides[0], sides[1]


def _policy(run: Run, letter: str, name: str | None) -> str | None:
    known = policy_names(run)
    if name is None:
        return known[-1] if known else None
    if name not in known:
        raise DataError(f"policy={name}: {letter} ({run.path}) evaluated {', '.join(known) or 'no policy'}")
    return name


def run_differences(a: Side, b: Side) -> list[Difference]:
    """Every metric that both have reply by reply, in a fixed order; empty when a side has no replies."""
    rows_a, rows_b = a.replies, b.replies
    if rows_a.empty or rows_b.empty:
        return []
    shared = shared_prompts(rows_a, rows_b)
    paired = len(shared) >= LEAST_SHARED
    if paired:
        rows_a, rows_b = (rows.merge(shared, on=PROMPT) for rows in (rows_a, rows_b))
    found, odd = [], mismatches(a.run, b.run)
    for metric in _shared_metrics(rows_a, rows_b):
        values = [pd.to_numeric(scores(rows, metric), errors="coerce") for rows in (rows_a, rows_b)]
        sides = [rows[PROMPT].assign(value=v.to_numpy(float)) for rows, v in zip((rows_a, rows_b), values, strict=True)]
        means = _estimate(sides[0]), _estimate(sides[1])
        if any(one.covers(metric) for one in odd):
            found.append(Difference(metric, *means, NO_TEST, tested=False))
        else:
            found.append(Difference(metric, *means, _paired(*sides) if paired else _unpaired(*sides)))
    return adjusted(found)


def adjusted(differences: Sequence[Difference]) -> list[Difference]:
    """The same with Holm's adjustment over all of them."""
    p_values = holm([one.versus.p_value for one in differences])
    return [dataclasses.replace(one, p_holm=p) for one, p in zip(differences, p_values, strict=True)]


def shared_prompts(rows_a: pd.DataFrame, rows_b: pd.DataFrame) -> pd.DataFrame:
    """Prompts that both answered, one row each."""
    return rows_a[PROMPT].drop_duplicates().merge(rows_b[PROMPT].drop_duplicates(), on=PROMPT)


def _shared_metrics(rows_a: pd.DataFrame, rows_b: pd.DataFrame) -> list[str]:
    """Columns that hold scores on both sides: known metrics first, then terms of the reward that are not its total."""
    names = [name for name in titled() if name in rows_a and name in rows_b]
    columns = [str(name) for name in rows_a if name in rows_b]
    terms = [name for name in columns if name.startswith("reward/") and name not in names]
    both = [name for name in [*names, *terms] if rows_a[name].notna().any() and rows_b[name].notna().any()]
    total = all("proxy" in rows for rows in (rows_a, rows_b))
    return [
        name
        for name in both
        if not (name.startswith("reward/") and total and all(_equal(rows, name) for rows in (rows_a, rows_b)))
    ]


def _equal(rows: pd.DataFrame, term: str) -> bool:
    """Whether a term is the whole reward."""
    part, total = (pd.to_numeric(rows[name], errors="coerce").to_numpy(float) for name in (term, "proxy"))
    return bool(np.allclose(part, total, equal_nan=True))


def _paired(a: pd.DataFrame, b: pd.DataFrame) -> Comparison:
    """B − A over shared prompts; exact McNemar for outcomes of one reply per prompt, which are independent pairs."""
    means = [prompt_means(rows, ["value"]) for rows in (a, b)]
    pair = pd.concat(means, axis=1, join="inner").to_numpy(float)
    found = paired_difference(pair[:, 1], pair[:, 0], np.arange(len(pair)))
    single = not any(rows.duplicated(PROMPT).any() for rows in (a, b))
    if not (single and _binary(a) and _binary(b)):
        return found
    only_a, only_b = (int((pair[:, here] > pair[:, there]).sum()) for here, there in ((0, 1), (1, 0)))
    test = f"exact McNemar test, {only_b} prompts only B, {only_a} only A"
    return dataclasses.replace(found, p_value=mcnemar_exact(only_b, only_a), test=test)


def _unpaired(a: pd.DataFrame, b: pd.DataFrame) -> Comparison:
    prompts = [rows.groupby(PROMPT, sort=False).ngroup().to_numpy() for rows in (a, b)]
    return unpaired_difference(b["value"].to_numpy(), prompts[1], a["value"].to_numpy(), prompts[0])


def _estimate(rows: pd.DataFrame) -> Estimate:
    prompts = rows.groupby(PROMPT, sort=False).ngroup().to_numpy()
    return (clustered_rate if _binary(rows) else clustered_mean)(rows["value"].to_numpy(), prompts)


def _binary(rows: pd.DataFrame) -> bool:
    return bool(rows["value"].dropna().isin((0.0, 1.0)).all())
