"""A check's values in a run directory: an estimate, and where the run has rows the values of every prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.files import read_json
from rlhf_lab.core.policies import own_policy
from rlhf_lab.evaluations.suite.suite_file import VERSIONS, Demand, HarnessTask, RunMetric, Suite
from rlhf_lab.results.folders import find_run
from rlhf_lab.results.gains import policy_names, scores
from rlhf_lab.results.rundir import Run, read_run
from rlhf_lab.statistics.estimates import Estimate
from rlhf_lab.statistics.inference import clustered_mean, clustered_rate

ASKED_BY_SUITE = ("golden/", "harness/")
"""Beginnings of the metrics that only a run of eval_suite has."""
SHOWN = 8
"""Metrics that an error lists."""


@dataclass(frozen=True)
class Check:
    """One demand of a suite and the metric that it is about.

    Attributes:
        role: of `needs` of the gated run whose directory has the metric; empty is the run itself.
        policy: whose metric; empty is the gated policy where `role` is set, else the run's own.
        version: digest of the golden set or task that the suite has; empty where it asks none.
    """

    name: str
    metric: str
    demand: Demand
    role: str = ""
    policy: str = ""
    version: str = ""


@dataclass(frozen=True)
class Scores:
    """What a run scored in a check.

    Attributes:
        outcomes: prompt → the values of its replies; empty where the run has the estimate alone.
        version: digest of the golden set or task that was asked; empty where the run does not say.
    """

    estimate: Estimate
    outcomes: Mapping[str, list[float]] = field(default_factory=dict)
    version: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {"estimate": self.estimate.to_dict(), "outcomes": dict(self.outcomes), "version": self.version}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Scores:
        return cls(Estimate.from_dict(values["estimate"]), values["outcomes"], values.get("version", ""))


def checks_of(suite: Suite) -> list[Check]:
    """Every demand of a suite, in its order."""
    versions = suite.versions()
    checks = []
    for name, golden in suite.golden.items():
        checks.append(Check(name, f"golden/{name}", golden, version=versions[f"golden/{name}"]))
    for name, metric in suite.metrics.items():
        assert isinstance(metric, RunMetric)
        checks.append(Check(name, metric.metric or name, metric, metric.run, metric.policy))
    for name, task in suite.harness.items():
        assert isinstance(task, HarnessTask)
        checks.append(Check(name, f"harness/{name}", task, version=versions[f"harness/{name}"]))
    return checks


class RunReader:
    """Reads the checks of one run, and of the runs that it started from.

    Raises DataError where the folder is no run, or one that is not complete.
    """

    def __init__(self, folder: Path | str):
        self.folder = find_run(folder)
        self._runs: dict[str, Run] = {}
        self.run = self._read("", self.folder)
        self.versions = read_json(self.folder / VERSIONS) or {}

    def scores(self, check: Check) -> Scores:
        """Raises DataError where the run does not have the check's metric, or not of the gated policy."""
        run = self._read(check.role, self._folder_of(check))
        policy = self._policy_of(check, run)
        version = str(self.versions.get(check.metric, "")) if check.version else ""
        rows = run.evaluation
        stored = next((each.metrics for each in run.policies if each.name == policy), {})
        estimate = stored.get(check.metric) or run.results.get(check.metric)
        if check.metric in rows:
            rows = rows[rows["policy"] == policy]
            values = pd.to_numeric(scores(rows, check.metric), errors="coerce")
            rows = rows.assign(value=values)[values.notna()]
            if len(rows):
                # a row without a value may be of another metric: the stage that scored the rows counted those without
                return replace(_scores_of_rows(rows, estimate.unscored if estimate else 0), version=version)
        if estimate is None:
            raise DataError(_missing_metric(check, run, policy, sorted({*stored, *run.results})))
        return Scores(estimate, version=version)

    def _policy_of(self, check: Check, run: Run) -> str:
        """Name of the policy whose metric it is: of another run, the one that is the gated policy."""
        names = policy_names(run)
        if check.role and names:
            names = self._names_of_gated(check.role, run, names)
            if not names:
                raise DataError(
                    f"{check.name}: {check.role} did not evaluate needs.policy; {run.path} evaluated "
                    f"{', '.join(policy_names(run))}. Name the run of this policy as needs.{check.role}"
                )
        if check.policy and check.policy not in names:
            of_gated = " for needs.policy" if check.role else ""
            raise DataError(
                f"{check.name}: {run.path} evaluated {', '.join(names) or 'no policy'}{of_gated}, not {check.policy}"
            )
        return check.policy or own_policy(names) or ""

    def _names_of_gated(self, role: str, run: Run, names: Sequence[str]) -> list[str]:
        """Names under which another run evaluated the gated policy. A gated run without needs.policy made its own."""
        gated = _folders(self.run).get("policy", self.folder.resolve())
        if _folders(self.run)[role] == gated:  # the run that made the policy
            return [own] if (own := own_policy(names)) else []
        roles = {each for each, folder in _folders(run).items() if folder == gated}
        # evaluations name a policy by its role; the reference by its stage, as "sft (reference)"
        return [name for name in names if ("reference" if name.endswith(" (reference)") else name) in roles]

    def _folder_of(self, check: Check) -> Path:
        if not check.role:
            return self.folder
        need = (self.run.manifest.get("needs") or {}).get(check.role)
        if not need:
            roles = ", ".join(self.run.manifest.get("needs") or {}) or "none"
            raise DataError(f"{check.name}: {self.folder} started from no needs.{check.role}; its roles: {roles}")
        named = Path(need["dir"])
        beside = self.folder.parent / named.name  # a store that was moved as a whole
        return named if named.is_dir() else beside

    def _read(self, role: str, folder: Path) -> Run:
        if role not in self._runs:
            run = read_run(folder)
            if run.status != "completed":
                raise DataError(f"{folder} is {run.status}; the gate judges complete runs: give its command again")
            if run.changed:
                raise DataError(f"{folder}: {', '.join(run.changed)} changed since the run was complete; run it again")
            self._runs[role] = run
        return self._runs[role]


def _missing_metric(check: Check, run: Run, policy: str, known: Sequence[str]) -> str:
    """What to say of a run without a check's metric: the run that has it, or the metrics closest to it."""
    is_of_suite = any(name.startswith(ASKED_BY_SUITE) for name in (*known, *map(str, run.evaluation.columns)))
    if check.metric.startswith(ASKED_BY_SUITE) and not is_of_suite:
        return (
            f"{check.name}: {run.path} was not asked {check.metric}: a suite's golden sets and tasks are asked by "
            "eval_suite, and the gate reads its run. Run python -m rlhf_lab +recipe=eval_suite "
            f"needs.policy={run.path} stages.safety_eval.needs.dpo={run.path} (and algorithm.suite=FILE for a suite of "
            "your own), then gate its folder"
        )
    shown = known
    if len(known) > SHOWN:
        shown = get_close_matches(check.metric, known, n=SHOWN, cutoff=0.3) or known[:SHOWN]
    listed = ", ".join(shown) or "no metric"
    if len(known) > SHOWN:
        listed = f"{len(known)} metrics, such as {listed} (all are in {run.path / 'result.json'})"
    return (
        f"{check.name}: {run.path} has no {check.metric} of {policy or 'a policy'}; it has {listed}. Name another run "
        "in the suite (run: ROLE), or evaluate with it"
    )


def _folders(run: Run) -> dict[str, Path]:
    """Role → the folder that a run started from."""
    needs = run.manifest.get("needs") or {}
    return {role: Path(need["dir"]).resolve() for role, need in needs.items()}


def _scores_of_rows(rows: pd.DataFrame, unscored: int) -> Scores:
    """Values by prompt, with an interval clustered by it; `unscored` rows beside them have no value."""
    keys = (rows["prompt_id"].astype(str) + " " + rows["prompt"]).tolist()
    values = rows["value"].to_numpy(float)
    outcomes: dict[str, list[float]] = {}
    for key, value in zip(keys, values.tolist(), strict=True):
        outcomes.setdefault(key, []).append(value)
    estimate = clustered_rate if np.isin(values, (0.0, 1.0)).all() else clustered_mean
    return Scores(replace(estimate(values, keys), unscored=unscored), outcomes)
