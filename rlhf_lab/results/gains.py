"""Gains of each policy over the starting policy, paired by prompt, and the warning lights that follow from them.

Samples of one prompt are averaged first, so a pair is one prompt under two policies. Without rows per sample, the
difference of two stored means is used, without an interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rlhf_lab.core.policies import in_training_order, own_policy
from rlhf_lab.results.rundir import StoredRun, once_per_run
from rlhf_lab.results.severity import monitor_state, sign_state
from rlhf_lab.results.wording import p_equals, signed
from rlhf_lab.statistics.inference import Comparison, Estimate, clustered_mean, holm, paired_difference

PROMPT = ["prompt_id", "prompt"]
"""Columns that identify a prompt: its position in the held-out set and its text."""
MONITOR = "monitor, during training"
"""Name of the warning light of the monitor."""


@dataclass(frozen=True)
class Light:
    """Warning light of a run.

    Attributes:
        name: sign of reward hacking that it stands for.
        state: "good", "watch", "bad" or "unknown".
    """

    name: str
    state: str
    words: str


def policy_names(run: StoredRun) -> list[str]:
    """Return the evaluated policies in order of training: the starting policy first, the run's own policy last."""
    sampled = run.evaluation["policy"].unique().tolist() if len(run.evaluation) else []
    return in_training_order([policy.name for policy in run.policies], sampled)


def policy_of(run: StoredRun) -> str | None:
    """Return the name of the run's own policy; None if it evaluated none."""
    return own_policy(policy_names(run))


def policies_on_path(run: StoredRun) -> frozenset[str]:
    """Return the policies that are successive points of one method, such as iterations; none if each is its own method.

    A rising proxy with a falling gold reward means over-optimisation only along such a sequence, and only these
    policies are joined by a line.
    """
    evidence = run.stage.evidence
    return frozenset(policy_names(run)) - {evidence.baseline_policy} if evidence.one_path else frozenset()


def scores(rows: pd.DataFrame, metric: str) -> pd.Series:
    """Return a metric row by row.

    A best-of-n row contains one response, but its column `expected_…` has the mean over all choices, which is used. It
    is missing if fewer than n responses were scored; the prompt then has no value, as in the stored mean.
    """
    expected = f"expected_{metric}"
    if expected not in rows:
        return rows[metric]
    # other policies of the run, such as the one that was sampled, have no such column
    is_choice = rows[expected].notna().groupby(rows["policy"], dropna=False).transform("any")
    return rows[expected].where(is_choice, rows[metric])


def prompt_means(rows: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    """Return means over the scored responses to each prompt: index PROMPT, one column per available metric."""
    columns = {name: pd.to_numeric(scores(rows, name), errors="coerce") for name in metrics if name in rows}
    return rows[PROMPT].assign(**columns).groupby(PROMPT, sort=False).mean()


def prompt_clusters(rows: pd.DataFrame, column: str) -> pd.Series:
    """Return the cluster of each prompt, indexed by PROMPT: the value of `column`, or the prompt itself."""
    prompts = rows.drop_duplicates(PROMPT).set_index(PROMPT)
    if column == "prompt_id":  # two prompts with the same id are two clusters
        return pd.Series(range(len(prompts)), index=prompts.index)
    return prompts[column].astype(str)


@dataclass(frozen=True)
class Prompts:
    """Prompts of a run's evaluation, in the order in which they appear.

    Attributes:
        position_N: position in `index_B` of the prompt of each row, (N,); −1 for a row without a prompt.
        index_B: id and text of each prompt, (B,), levels PROMPT.
        cluster_B: cluster of each prompt, (B,): the value of the run's cluster column, or the prompt itself.
    """

    position_N: NDArray[np.int64]
    index_B: pd.Index
    cluster_B: NDArray[Any]


@once_per_run
def prompts_of(run: StoredRun) -> Prompts:
    rows = run.evaluation
    position_N = rows.groupby(PROMPT, sort=False).ngroup().to_numpy().astype(np.int64)
    clusters = prompt_clusters(rows.dropna(subset=PROMPT), cluster_column(run))
    return Prompts(position_N, clusters.index, clusters.to_numpy())


@once_per_run
def _means_by_position(run: StoredRun, policy: str, metric: str) -> pd.Series:
    """Return the mean of a metric of one policy per prompt, indexed by `Prompts.position_N`; empty if not measured."""
    rows = run.evaluation
    if metric not in rows:
        return pd.Series(dtype=float, index=pd.Index([], dtype=int))
    position_N = prompts_of(run).position_N
    counted_N = (rows["policy"] == policy).to_numpy() & (position_N >= 0)
    values = pd.to_numeric(scores(rows, metric)[counted_N], errors="coerce")
    return values.groupby(position_N[counted_N], sort=False).mean()


def by_prompt(run: StoredRun, policy: str, metric: str) -> pd.Series:
    """Return the mean of a metric of one policy per prompt: index PROMPT; empty if it was not measured."""
    means = _means_by_position(run, policy, metric)
    return pd.Series(means.to_numpy(), index=prompts_of(run).index_B[means.index], name=metric)


def policy_mean(run: StoredRun, policy: str, metric: str) -> Estimate | None:
    """Return the stored estimate of a policy's metric, or its mean over samples, clustered as in the stage."""
    for stored in run.policies:
        if stored.name == policy and metric in stored.metrics:
            return stored.metrics[metric]
    rows = run.evaluation
    if metric not in rows:
        return None
    rows = rows[rows["policy"] == policy]
    values_N = rows[metric].to_numpy(dtype=float)
    estimate = clustered_mean(values_N, rows[cluster_column(run)].astype(str).to_numpy())
    return estimate if estimate.n else None


def cluster_column(run: StoredRun) -> str:
    """Return the column of `run.evaluation` by which the intervals of the run are clustered."""
    column = run.stage.evidence.clusters.column
    return column if column in run.evaluation else "prompt_id"


def gain(run: StoredRun, policy: str, metric: str, *, scale: float = 1.0) -> Comparison | None:
    """Return the mean of `metric` under `policy` minus that under the first policy, paired, divided by `scale`."""
    return compare_policies(run, policy, policy_names(run)[0], metric, scale=scale)


@once_per_run
def compare_policies(
    run: StoredRun, policy: str, reference: str, metric: str, *, scale: float = 1.0
) -> Comparison | None:
    """Return the paired mean difference of `metric` between two policies, divided by `scale`; None if unscored."""
    sides = [_means_by_position(run, name, metric) for name in (policy, reference)]
    pairs = pd.concat(sides, axis=1, join="inner")
    if len(pairs.dropna()):
        values_B2 = pairs.to_numpy(dtype=float) / scale
        return paired_difference(values_B2[:, 0], values_B2[:, 1], prompts_of(run).cluster_B[pairs.index])
    # Without rows per prompt only the difference of the stored means is known, so there is no interval.
    policy_estimate = policy_mean(run, policy, metric)
    reference_estimate = policy_mean(run, reference, metric)
    if policy_estimate is None or reference_estimate is None:
        return None
    gap = policy_estimate.mean - reference_estimate.mean
    if math.isnan(gap):
        return None
    without_interval = Estimate(gap / scale, -math.inf, math.inf, 0, 0)
    return Comparison(without_interval, math.nan, math.inf, "none: no samples per prompt")


def spread_of_first(run: StoredRun, metric: str) -> float:
    """Return the standard deviation of a metric over the first policy's samples; NaN if unknown."""
    rows = run.evaluation
    if metric not in rows:
        return math.nan
    first = policy_names(run)[0]
    return float(rows.loc[rows["policy"] == first, metric].std())


def lights(run: StoredRun) -> list[Light]:
    """Return the signs of reward hacking in the last policy against the first, Holm-adjusted over the signs."""
    names = policy_names(run)
    if len(names) < 2:
        return []
    truth = "gold" if run.has_gold else "correct"
    metrics = ("proxy", truth, "tokens", "verbose", "garble", "ended")
    changes = {metric: gain(run, names[-1], metric) for metric in metrics}
    gains = {metric: comparison for metric, comparison in changes.items() if comparison is not None}
    # Each light could be a false alarm, so all of them are one family of tests.
    p_values = [comparison.p_value for comparison in gains.values()]
    adjusted_p = dict(zip(gains, holm(p_values), strict=True))
    moves = {metric: _significant_direction(gains[metric], adjusted_p[metric]) for metric in gains}
    shown = [_reward_light(gains, moves, truth)]
    for name, metric, harmful_direction in (
        ("length", "tokens", +1),
        ("padding", "verbose", +1),
        ("garbling", "garble", +1),
        ("missing endings", "ended", -1),
    ):
        if metric in gains:
            state = sign_state(name, alarm=moves[metric] == harmful_direction)
            numbers = f"{metric} {signed(gains[metric].difference)}, {p_equals(adjusted_p[metric])}"
            shown.append(Light(name, state, numbers))
    if monitor := monitor_state(run, moves.get(truth)):
        shown.append(Light(MONITOR, *monitor))
    return shown


def _reward_light(gains: dict[str, Comparison], moves: dict[str, int], truth: str) -> Light:
    """Return the light for over-optimisation: the proxy rose and gold did not follow."""
    name = "over-optimisation"
    known = [metric for metric in ("proxy", truth) if metric in gains]
    words = ", ".join(f"{metric} {signed(gains[metric].difference)}" for metric in known)
    if truth not in gains:
        return Light(name, "unknown", f"{words}; undecidable without a gold reward".lstrip("; "))
    if moves[truth] > 0:
        return Light(name, "good", words)
    if moves[truth] < 0:
        return Light(name, sign_state(name, alarm=True), words)
    # A rise of the proxy alone is only a symptom: gold has not fallen yet.
    state = "watch" if moves.get("proxy", 0) > 0 else "good"
    return Light(name, state, f"{words}; {truth} did not clearly change")


def _significant_direction(comparison: Comparison, p_holm: float) -> int:
    """Return +1 or −1 if the difference is significant at 5 % after Holm's adjustment, else 0."""
    if math.isnan(p_holm) or p_holm > 0.05:
        return 0
    return 1 if comparison.difference.mean > 0 else -1


def five_numbers(values: Sequence[float] | np.ndarray) -> tuple[float, ...] | None:
    """Return the 5, 25, 50, 75 and 95 % quantiles of the finite values; None without any."""
    values_N = np.asarray(values, dtype=float)
    scored_N = values_N[np.isfinite(values_N)]
    if not scored_N.size:
        return None
    return tuple(float(value) for value in np.quantile(scored_N, (0.05, 0.25, 0.5, 0.75, 0.95)))
