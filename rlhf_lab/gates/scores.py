"""Values of a check in a run directory: an estimate, and the values of every prompt if the run has rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pandas as pd

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.files import read_object
from rlhf_lab.core.policies import own_policy
from rlhf_lab.evaluations.suite.suite_file import VERSIONS, Demand, GoldenSet, HarnessTask, RunMetric, Suite
from rlhf_lab.results.folders import find_run
from rlhf_lab.results.gains import cluster_column, policy_names, scores
from rlhf_lab.results.rundir import StoredRun, input_directory, read_run
from rlhf_lab.results.scales import scale_identity
from rlhf_lab.statistics.estimates import Estimate
from rlhf_lab.statistics.rows import rate_or_mean

ASKED_BY_SUITE = ("golden/", "harness/")
"""Prefixes of the metrics that only a run of eval_suite has."""
SHOWN = 8
"""Maximum number of metrics in an error."""


@dataclass(frozen=True)
class SuiteCheck:
    """One requirement of a suite, and the metric that it is about.

    Attributes:
        demand: bounds and comparison.
        role: role in `needs` of the gated run whose directory has the metric; "" is the gated run itself.
        policy: policy of the metric; "" is the gated policy if `role` is set, else the run's own.
        version: digest of the suite's golden set or task; "" if the check has none.
    """

    name: str
    metric: str
    demand: Demand
    role: str = ""
    policy: str = ""
    version: str = ""


@dataclass(frozen=True)
class Scores:
    """Values of a run in a check.

    Attributes:
        outcomes: prompt → values of its responses; empty if the run has the estimate only.
        version: digest of the golden set or task that was used; "" if the run does not state it.
        clusters: prompt → cluster, for runs whose prompts are not independent; empty if every prompt is a cluster.
        unit: noun of a cluster, such as "prompt" or "template".
        scale: identifier of the reward, the source of gold and the reference policy that the values depend on; "" if
            there are none or they are not known.
    """

    estimate: Estimate
    outcomes: Mapping[str, list[float]] = field(default_factory=dict)
    version: str = ""
    clusters: Mapping[str, str] = field(default_factory=dict)
    unit: str = "prompt"
    scale: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "estimate": self.estimate.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Scores:
        return cls(**{**values, "estimate": Estimate.from_dict(values["estimate"])})


def checks_of(suite: Suite) -> list[SuiteCheck]:
    """Return all demands of a suite, in its order."""
    # golden sets and harness tasks are versioned by content; metrics of runs are not
    versions = suite.versions()
    checks = []
    for name, golden in suite.golden.items():
        checks.append(SuiteCheck(name, f"golden/{name}", golden, version=versions[f"golden/{name}"]))
    for name, metric in suite.metrics.items():
        assert isinstance(metric, RunMetric)
        checks.append(SuiteCheck(name, metric.metric or name, metric, metric.run, metric.policy))
    for name, task in suite.harness.items():
        assert isinstance(task, HarnessTask)
        checks.append(SuiteCheck(name, f"harness/{name}", task, version=versions[f"harness/{name}"]))
    return checks


class RunReader:
    """Reads the checks of one run and of the runs that it started from.

    Raises DataError if the directory is not a run, or the run is not complete.
    """

    def __init__(self, directory: Path | str):
        self.directory = find_run(directory)
        self._runs: dict[str, StoredRun] = {}
        self.run = self._read("", self.directory)
        self.versions = read_object(self.directory / VERSIONS)

    def scores(self, check: SuiteCheck) -> Scores:
        """Return the values of a check. Raises DataError if the gated policy has no such metric in the run."""
        run = self._read(check.role, self._dir_of(check))
        policy = self._policy_of(check, run)
        version = str(self.versions.get(check.metric, "")) if check.version else ""
        is_of_reward = isinstance(check.demand, GoldenSet) and check.demand.check == "reward"
        scale = scale_identity(run, check.metric, scored=is_of_reward)
        rows = run.evaluation
        stored = next((each.metrics for each in run.policies if each.name == policy), {})
        estimate = stored.get(check.metric) or run.results.get(check.metric)
        if check.metric in rows:
            rows = rows[rows["policy"] == policy]
            values = pd.to_numeric(scores(rows, check.metric), errors="coerce")
            rows = rows.assign(value=values)[values.notna()]
            if len(rows):
                # rows without a value may belong to another metric, so the count of unscored rows is the stage's own
                unscored = estimate.unscored if estimate else 0
                return replace(_scores_of_rows(rows, unscored, run), version=version, scale=scale)
        if estimate is None:
            raise DataError(_missing_metric(check, run, policy, sorted({*stored, *run.results})))
        return Scores(estimate, version=version, scale=scale)

    def _policy_of(self, check: SuiteCheck, run: StoredRun) -> str:
        """Return the policy whose metric a check reads.

        In another run, this is the gated policy under its name in that run.
        """
        names = policy_names(run)
        if check.role and names:
            names = self._names_of_gated(check.role, run, names)
            if not names:
                raise DataError(
                    f"{check.name}: {check.role} did not evaluate needs.policy; {run.path} evaluated "
                    f"{', '.join(policy_names(run))}. Name the run that evaluated this policy as needs.{check.role}"
                )
        if check.policy and check.policy not in names:
            of_gated = " for needs.policy" if check.role else ""
            raise DataError(
                f"{check.name}: {run.path} evaluated {', '.join(names) or 'no policy'}{of_gated}, not {check.policy}"
            )
        return check.policy or own_policy(names) or ""

    def _names_of_gated(self, role: str, run: StoredRun, names: Sequence[str]) -> list[str]:
        """Return the names of the gated policy in another run. A gated run without needs.policy trained it itself."""
        gated = _folders(self.run).get("policy", self.directory.resolve())
        if _folders(self.run)[role] == gated:  # the other run trained the policy
            return [own] if (own := own_policy(names)) else []
        directories = _folders(run)
        roles = {each for each, directory in directories.items() if directory == gated}
        # evaluations name a policy by its role, and the reference by its stage, as in "sft (reference)"
        return [name for name in names if ("reference" if name.endswith(" (reference)") else name) in roles]

    def _dir_of(self, check: SuiteCheck) -> Path:
        if not check.role:
            return self.directory
        need = (self.run.manifest.get("needs") or {}).get(check.role)
        if not need:
            roles = ", ".join(self.run.manifest.get("needs") or {}) or "none"
            raise DataError(f"{check.name}: {self.directory} has no needs.{check.role}; its roles: {roles}")
        return input_directory(self.directory, need) or Path(need["dir"])

    def _read(self, role: str, directory: Path) -> StoredRun:
        if role not in self._runs:
            run = read_run(directory)
            if run.status != "completed":
                raise DataError(f"{directory} is {run.status}; the gate needs complete runs: run its command again")
            if run.changed:
                raise DataError(
                    f"{directory}: {', '.join(run.changed)} changed since the run was completed; run it again"
                )
            self._runs[role] = run
        return self._runs[role]


def _missing_metric(check: SuiteCheck, run: StoredRun, policy: str, known: Sequence[str]) -> str:
    """Return an error for a run without a check's metric: it names the run that has it, or similar metrics."""
    columns = map(str, run.evaluation.columns)
    is_of_suite = any(name.startswith(ASKED_BY_SUITE) for name in (*known, *columns))
    if check.metric.startswith(ASKED_BY_SUITE) and not is_of_suite:
        model = run.path / "model"  # `needs` takes the model's directory inside a run
        policy_source = str(model) if model.is_dir() else "MODEL"
        return (
            f"{check.name}: {run.path} has no {check.metric}. Only eval_suite measures the golden sets and tasks of a "
            "suite, and the gate reads its run. Run `python -m rlhf_lab +recipe=eval_suite "
            f"needs.policy={policy_source} stages.safety_eval.needs.dpo={policy_source}` (and algorithm.suite=FILE for "
            "your own suite), then gate the run directory that it prints"
        )
    shown = known
    if len(known) > SHOWN:
        shown = get_close_matches(check.metric, known, n=SHOWN, cutoff=0.3) or known[:SHOWN]
    listed = ", ".join(shown) or "no metric"
    if len(known) > SHOWN:
        listed = f"{len(known)} metrics, such as {listed} (all are in {run.path / 'result.json'})"
    return (
        f"{check.name}: {run.path} has no {check.metric} of {policy or 'a policy'}; it has {listed}. Name another run "
        "in the suite (run: ROLE), or run an evaluation that measures it"
    )


def _folders(run: StoredRun) -> dict[str, Path]:
    """Return role → directory that a run started from."""
    needs = run.manifest.get("needs") or {}
    return {role: Path(need["dir"]).resolve() for role, need in needs.items()}


def _scores_of_rows(rows: pd.DataFrame, unscored: int, run: StoredRun) -> Scores:
    """Return values by prompt, with an interval clustered as in the run's stage.

    Args:
        rows: scored rows of one policy, with the score in the column `value`.
        unscored: number of rows without a value.
        run: the run of the rows.
    """
    # the key contains the text, so that prompts with the same id in another version do not match
    keys = (rows["prompt_id"].astype(str) + " " + rows["prompt"]).tolist()
    values = rows["value"].to_numpy(float)
    outcomes = {str(key): of_prompt.tolist() for key, of_prompt in rows["value"].groupby(keys, sort=False)}
    column = cluster_column(run)
    # attempts at tasks of one template share errors, for example
    is_by_prompt = column == "prompt_id"
    units = keys if is_by_prompt else rows[column].astype(str).tolist()
    return Scores(
        replace(rate_or_mean(values, units), unscored=unscored),
        outcomes,
        clusters={} if is_by_prompt else dict(zip(keys, units, strict=True)),
        unit="prompt" if is_by_prompt else run.stage.evidence.clusters.noun,
    )
