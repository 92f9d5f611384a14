"""Comparison of two runs: the metrics of one policy each on the held-out prompts that both answered, paired by prompt.

Responses to one prompt are averaged first, because response i of A and response i of B are independent samples. A pair
is one prompt under two policies. Without shared prompts the test is unpaired, and a note gives the reason. Holm's
adjustment covers all tested metrics. Metrics that agree only in name are not tested (`scales.py`). Numbers that were
stored with intervals but without rows, such as those of reward models, are tested as unpaired.
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
from rlhf_lab.core.progress import tracked
from rlhf_lab.reports.comparison.scales import mismatches
from rlhf_lab.reports.reward.card import SKIPPED
from rlhf_lab.results.folders import find_run
from rlhf_lab.results.gains import PROMPT, policy_names, policy_of, prompt_clusters, prompt_means, scores
from rlhf_lab.results.rundir import StoredRun, read_run
from rlhf_lab.results.wording import compact, judged_title, metric_note, p_text
from rlhf_lab.statistics.inference import (
    Comparison,
    Estimate,
    holm,
    paired_difference,
    unpaired_difference,
    unpaired_from_intervals,
)
from rlhf_lab.statistics.paired_rates import with_mcnemar
from rlhf_lab.statistics.rows import rate_or_mean
from rlhf_lab.training.settings import StageSettings
from rlhf_lab.training.stage_spec import ClusterUnit

LEAST_SHARED = 2
"""Minimum number of shared prompts for a paired test, because a standard deviation needs two differences."""
NO_TEST = Comparison(Estimate(math.nan, -math.inf, math.inf, 0, 0), math.nan, math.nan, "none")
"""Placeholder for the difference of two numbers that cannot be compared."""


@dataclass(frozen=True)
class Side:
    """One of two runs.

    Attributes:
        policy: evaluated policy that represents the run; None if the run evaluated none.
    """

    letter: str
    run: StoredRun
    policy: str | None

    @property
    def name(self) -> str:
        """Name of this side of the comparison: its letter with the policy, or with the recipe if it has no policy."""
        return f"{self.letter} {self.policy or self.run.recipe}"

    @property
    def clusters(self) -> ClusterUnit:
        """Unit by which intervals are clustered: that of the run's stage, if the rows of the run have it."""
        unit = self.run.stage.evidence.clusters
        return unit if unit.column in self.run.evaluation else StageSettings.evidence.clusters

    @property
    def responses(self) -> pd.DataFrame:
        """Scored responses of the policy to held-out prompts; empty if there are none."""
        rows = self.run.evaluation
        return rows[rows["policy"] == self.policy] if len(rows) else rows


@dataclass(frozen=True)
class Difference:
    """One metric of A and of B, with the test of their difference.

    Attributes:
        versus: difference B − A.
        p_holm: p-value adjusted over all metrics that are compared together.
        tested: True if the two can be compared; otherwise `versus` and `p_holm` are NaN.
    """

    metric: str
    a: Estimate
    b: Estimate
    versus: Comparison
    p_holm: float = math.nan
    tested: bool = True

    @property
    def distinguishable(self) -> bool:
        return self.p_holm <= 0.05


def find_sides(a: Path | str, b: Path | str, policy: str | None = None) -> tuple[Side, Side]:
    """Read two runs, or jobs of studies, and choose a policy of each: by default the run's own.

    Args:
        policy: a policy that both evaluated, or one of A and one of B separated by a comma.

    Raises:
        DataError: a directory is not a run, a policy was not evaluated, or both sides are the same.
    """
    names = [name.strip() for name in policy.split(",", 1)] if policy and "," in policy else [policy, policy]
    folders = [find_run(directory) for directory in (a, b)]
    sides = []
    for letter, directory, name in zip("AB", folders, names, strict=True):
        run = read_run(directory)
        sides.append(Side(letter, run, _choose_policy(run, letter, name)))
    side_a, side_b = sides
    # Two policies of one run may be compared, but not a policy with itself.
    if folders[0].resolve() == folders[1].resolve() and side_a.policy == side_b.policy:
        other_policies = [name for name in policy_names(side_a.run) if name != side_a.policy]
        hint = ""
        if other_policies:
            hint = f"; compare two of its policies with policy='{other_policies[0]},{side_a.policy}'"
        raise DataError(f"A and B are the same run, {folders[0]}{hint}")
    return side_a, side_b


def _choose_policy(run: StoredRun, letter: str, name: str | None) -> str | None:
    """Return the requested policy, or the run's own. Raise DataError if it was not evaluated."""
    evaluated = policy_names(run)
    if name is None:
        return policy_of(run)
    if name not in evaluated:
        known = ", ".join(evaluated) or "no policy"
        raise DataError(f"policy={name} was not evaluated by {letter} ({run.path}), which evaluated {known}")
    return name


def run_differences(a: Side, b: Side) -> list[Difference]:
    """Return every metric that both runs have per response, in a fixed order; empty if a side has no responses."""
    rows_a, rows_b = a.responses, b.responses
    if rows_a.empty or rows_b.empty:
        return []
    shared = shared_prompts(rows_a, rows_b)
    paired = len(shared) >= LEAST_SHARED
    if paired:
        # With the same prompts on both sides, the difference of the means is the mean difference.
        rows_a = rows_a.merge(shared, on=PROMPT)
        rows_b = rows_b.merge(shared, on=PROMPT)
    differences = []
    scale_mismatches = mismatches(a.run, b.run)
    column = cluster_unit(a, b).column
    for metric in tracked(_shared_metrics(rows_a, rows_b), "metrics"):
        values_a = _metric_values(rows_a, metric, column)
        values_b = _metric_values(rows_b, metric, column)
        tested = not any(mismatch.covers(metric) for mismatch in scale_mismatches)
        test = _paired_by_prompt if paired else _unpaired_by_prompt
        versus = test(values_a, values_b) if tested else NO_TEST
        mean_a, mean_b = (rate_or_mean(rows["value"], rows["cluster"]) for rows in (values_a, values_b))
        differences.append(Difference(metric, mean_a, mean_b, versus, tested=tested))
    return _adjust_p_values(differences)


def cluster_unit(a: Side, b: Side) -> ClusterUnit:
    """Return the unit by which intervals of both sides are clustered: the common unit, else the prompt."""
    return a.clusters if a.clusters == b.clusters else StageSettings.evidence.clusters


def _metric_values(rows: pd.DataFrame, metric: str, column: str) -> pd.DataFrame:
    """Return one row per response: the columns of PROMPT, the metric as `value`, and `cluster` from a column."""
    values = pd.to_numeric(scores(rows, metric), errors="coerce")
    clusters = prompt_clusters(rows, column).loc[pd.MultiIndex.from_frame(rows[PROMPT])]
    return rows[PROMPT].assign(value=values.to_numpy(float), cluster=clusters.to_numpy())


def _adjust_p_values(differences: Sequence[Difference]) -> list[Difference]:
    """Return the differences with Holm's adjustment over all of them."""
    p_values = holm([difference.versus.p_value for difference in differences])
    adjusted = zip(differences, p_values, strict=True)
    return [dataclasses.replace(difference, p_holm=p_holm) for difference, p_holm in adjusted]


def shared_prompts(rows_a: pd.DataFrame, rows_b: pd.DataFrame) -> pd.DataFrame:
    """Return the prompts that both policies answered, one row each."""
    return rows_a[PROMPT].drop_duplicates().merge(rows_b[PROMPT].drop_duplicates(), on=PROMPT)


def _shared_metrics(rows_a: pd.DataFrame, rows_b: pd.DataFrame) -> list[str]:
    """Return columns with scores on both sides: known metrics first, then reward terms that differ from the total."""
    names = [name for name in titled() if name in rows_a and name in rows_b]
    columns = [str(name) for name in rows_a if name in rows_b]
    # Terms of the reward are named "reward/TERM".
    terms = [name for name in columns if name.startswith("reward/") and name not in names]
    scored = [name for name in [*names, *terms] if rows_a[name].notna().any() and rows_b[name].notna().any()]
    if not ("proxy" in rows_a and "proxy" in rows_b):
        return scored

    def repeats_proxy(name: str) -> bool:
        """Return True for a reward term that equals the proxy, which would be tested twice."""
        return name.startswith("reward/") and _is_full_reward(rows_a, name) and _is_full_reward(rows_b, name)

    return [name for name in scored if not repeats_proxy(name)]


def _is_full_reward(rows: pd.DataFrame, term: str) -> bool:
    term_N, total_N = (pd.to_numeric(rows[name], errors="coerce").to_numpy(float) for name in (term, "proxy"))
    return bool(np.allclose(term_N, total_N, equal_nan=True))


def _paired_by_prompt(a: pd.DataFrame, b: pd.DataFrame) -> Comparison:
    """Compute B − A over shared prompts; the p-value is exact McNemar for a single 0/1 outcome per cluster."""
    means = [prompt_means(rows, ["value"]) for rows in (a, b)]
    pairs = pd.concat(means, axis=1, join="inner")
    means_B2 = pairs.to_numpy(float)
    a_B, b_B = means_B2[:, 0], means_B2[:, 1]
    cluster_B = a.drop_duplicates(PROMPT).set_index(PROMPT)["cluster"].loc[pairs.index].to_numpy()
    comparison = paired_difference(b_B, a_B, cluster_B)
    # McNemar's test needs independent pairs, so no cluster may have a second response.
    one_reply_per_cluster = not any(rows.duplicated("cluster").any() for rows in (a, b))
    if not (one_reply_per_cluster and _is_binary(a) and _is_binary(b)):
        return comparison
    return with_mcnemar(comparison, a_B, b_B, ("A", "B"))


def _unpaired_by_prompt(a: pd.DataFrame, b: pd.DataFrame) -> Comparison:
    arguments = (rows[name].to_numpy() for rows in (b, a) for name in ("value", "cluster"))
    return unpaired_difference(*arguments)


def _is_binary(rows: pd.DataFrame) -> bool:
    """Return True if all values are 0 or 1."""
    return bool(rows["value"].dropna().isin((0.0, 1.0)).all())


COSTS = ("seconds", "peak_gib", "generated_tokens", "parameters/trained", "checkpoint_mib")
"""Metrics of cost, which have a separate table."""

Stored = tuple[str, str, str, str, str]
"""(metric, A, B, test, note)"""


def stored_numbers(a: Side, b: Side, tested: Sequence[str]) -> list[tuple[Stored, bool]]:
    """Return the numbers that both runs stored and that no test of responses covers.

    Each comes with True if one of the two numbers has an interval.
    """
    estimates_a, estimates_b = _stored_estimates(a), _stored_estimates(b)
    scale_mismatches = mismatches(a.run, b.run)
    has_gold = a.run.has_gold and b.run.has_gold
    rows: list[tuple[Stored, bool]] = []
    for name, of_a in estimates_a.items():
        if name not in estimates_b or name in (*tested, *COSTS) or name.startswith(SKIPPED):
            continue
        of_b = estimates_b[name]
        if math.isnan(of_a.mean + of_b.mean):
            continue
        comparable = not any(mismatch.covers(name) for mismatch in scale_mismatches)
        test = _unpaired_test(of_a, of_b) if comparable else "–"
        row = (judged_title(name, has_gold), compact(of_a), compact(of_b), test, metric_note(name))
        rows.append((row, bool(of_a.n or of_b.n)))
    return rows


def stored_conclusion(a: Side, b: Side, stored: Sequence[tuple[Stored, bool]]) -> str:
    """Return the first tested number of runs that have no responses to compare, such as reward models."""
    sentence = f"`{a.name}` and `{b.name}` share no metric of responses with the same scale."
    for (title, of_a, of_b, test, _), has_interval in stored:
        if has_interval and test not in ("", "–"):
            return f"{sentence} The first number that both stored is {title}: {of_a} and {of_b}, {test}."
    return f"{sentence} No number that both stored can be tested."


def _stored_estimates(side: Side) -> dict[str, Estimate]:
    policy = next((policy for policy in side.run.policies if policy.name == side.policy), None)
    return {**side.run.results, **(policy.metrics if policy else {})}


def _unpaired_test(a: Estimate, b: Estimate) -> str:
    """Return the result of an unpaired test; with rows of both sides, a paired test would have more power."""
    if a.mean == b.mean:
        return "equal"
    z, p_value = unpaired_from_intervals(a, b)
    return "" if math.isnan(z) else f"unpaired z {compact(z)}, p {p_text(p_value)}"
