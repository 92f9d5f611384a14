"""Reads a study directory into tidy frames: one row per job, whether it completed, failed or never ran.

Everything is read by key from `study.json`, `job.json` and each run's `result.json`; no name and no log is parsed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from rlhf_lab.config.overrides import is_choice, level_name
from rlhf_lab.core.errors import DataError
from rlhf_lab.results.gains import policy_of, prompt_means
from rlhf_lab.results.paths import policies_on_path
from rlhf_lab.results.rundir import Run, is_run, read_json, read_run
from rlhf_lab.studies.replication import UNKNOWN, Replication

COMPLETED = "completed"
ALL_SEEDS = "all seeds"
"""The one level of a sweep over seeds alone: seeds are repetitions, and are not compared with one another."""


@dataclass(frozen=True)
class Study:
    """A sweep over one factor, repeated over seeds.

    Attributes:
        command: the command line that ran the study.
        compare: the override that is compared, e.g. "algorithm.buffer".
        baseline: its level that the others are compared with.
        metrics: metrics to tabulate; `primary` is the one the question is about.
        curves: which curves the report adds, or None.
        by: another override, within each value of which levels are compared; "" compares over all jobs.
        predicts: claims that the numbers decide, as `sections.Prediction` in plain values.
        size: `full`, `quick` or `smoke`.
        factors: every override that some job sets.
        frame: one row per job: index, status, error, run (Path or None), changed (`Run.changed`, joined by commas),
            level, one column per factor, and per metric m the columns m, "m/low", "m/high", "m/n".
        policies: one row per evaluated policy of each completed job: index, level, seed, position, policy, joined
            (whether it lies on the path of its run's training), and one column per metric.
        gold_source: what gold is, as in `Run.gold_source`, of each kind that the runs have; empty where none has gold.
        replication: what differs between the study's seeds besides training.
        labels: swept key → how its values are called: a text with "{}", or value → text.
        fronts: pairs of metrics with a margin, as `sections.FrontOf` in plain values.
        prompts: job → the metrics of its last policy by prompt, where all seeds are tested on the same prompts.
        worlds: completed job → `Run.world`.
    """

    path: Path
    recipe: str
    command: str
    question: str
    hypothesis: str | None
    compare: str
    baseline: str
    metrics: tuple[str, ...]
    primary: str
    curves: str | None
    by: str
    predicts: tuple[Mapping[str, Any], ...]
    size: str
    factors: tuple[str, ...]
    frame: pd.DataFrame
    policies: pd.DataFrame
    gold_source: str
    replication: Replication = UNKNOWN
    labels: Mapping[str, Any] = field(default_factory=dict)
    fronts: tuple[Mapping[str, Any], ...] = ()
    prompts: Mapping[int, pd.DataFrame] = field(default_factory=dict)
    worlds: Mapping[int, str] = field(default_factory=dict)

    @property
    def has_gold(self) -> bool:
        """Whether some run has a gold reward."""
        return bool(self.gold_source)

    def label(self, level: str) -> str:
        """What a level of the compared factor is called."""
        return self._label_of(self.compare, level)

    def panel_label(self, value: str) -> str:
        """What a value of `by` is called."""
        return self._label_of(self.by, value)

    def _label_of(self, key: str, level: str) -> str:
        if level == ALL_SEEDS:
            return level
        names = self.labels.get(key)
        if isinstance(names, str):
            return names.replace("{}", level)
        if names and level in names:
            return str(names[level])
        if is_choice(key) or key.startswith("needs."):  # names of components and recipes speak for themselves
            return level
        setting = key.rpartition(".")[2].replace("_", " ")
        return f"{setting} {level}"

    @property
    def levels(self) -> list[str]:
        """Levels of the compared factor: the baseline, then the others in job order."""
        levels = list(dict.fromkeys(self.frame["level"]))
        baseline = [level for level in levels if level == self.baseline]
        return baseline + [level for level in levels if level != self.baseline]

    @property
    def completed(self) -> pd.DataFrame:
        return self.frame[self.frame["status"] == COMPLETED]

    def panels(self) -> list[tuple[str, Study]]:
        """(value of `by`, the study's jobs with that value), in job order; ("", all of it) when nothing divides it."""
        if self.by not in self.factors:  # or it was given one value on the command line
            return [("", self)]
        values = self.frame[self.by].map(level_name)
        panels = []
        for value in dict.fromkeys(values):
            frame = self.frame[values == value]
            policies = self.policies
            if len(policies):
                policies = policies[policies["index"].isin(frame["index"])]
            panels.append((value, dataclasses.replace(self, frame=frame, policies=policies)))
        return panels

    @property
    def incomplete(self) -> pd.DataFrame:
        """Jobs that failed, were interrupted or never ran."""
        return self.frame[self.frame["status"] != COMPLETED]

    @property
    def changed(self) -> pd.DataFrame:
        """Jobs whose run has changed since it was completed; they count with what their files hold now."""
        return self.frame[self.frame["changed"] != ""]


def is_study(folder: Path) -> bool:
    return (folder / "study.json").is_file()


def read_study(folder: Path | str) -> Study:
    """Read a study directory. Raises DataError when study.json is missing or lacks a field."""
    folder = Path(folder)
    plan = _read_plan(folder)
    compare = str(plan["compare"])
    metrics = [str(name) for name in plan["metrics"]]
    primary = str(plan.get("primary") or metrics[0])
    metrics = [primary] + [name for name in metrics if name != primary]
    factors = tuple(dict.fromkeys(key for job in plan["jobs"] for key in job.get("overrides", {})))
    rows: list[dict[str, Any]] = []
    policies: list[dict[str, Any]] = []
    gold_sources: dict[str, None] = {}  # in the order of the jobs, each once
    replication = Replication.from_dict(plan.get("replication"))
    prompts: dict[int, pd.DataFrame] = {}
    worlds: dict[int, str] = {}
    for number, job in enumerate(plan["jobs"]):
        overrides = dict(job.get("overrides", {}))
        row, run = _read_job(folder, int(job.get("index", number)), metrics)
        row["level"] = ALL_SEEDS if compare == "seed" else level_name(overrides.get(compare))
        rows.append({**row, **{factor: overrides.get(factor) for factor in factors}})
        if run is not None and row["status"] == COMPLETED:
            gold_sources |= {run.gold_source: None} if run.has_gold else {}
            worlds[row["index"]] = run.world
            if replication.shares_prompts and len(run.evaluation):
                last_policy = run.evaluation[run.evaluation["policy"] == policy_of(run)]
                prompts[row["index"]] = prompt_means(last_policy, metrics)
            job_keys = {"index": row["index"], "level": row["level"], "seed": overrides.get("seed", row["index"])}
            path = policies_on_path(run)
            for position, policy in enumerate(run.policies):
                means = {name: estimate.mean for name, estimate in policy.metrics.items()}
                place = {"position": position, "policy": policy.name, "joined": policy.name in path}
                policies.append({**job_keys, **place, **means})
    baseline = ALL_SEEDS if compare == "seed" else plan.get("baseline")
    recipe = str(plan.get("recipe") or folder.name)
    return Study(
        path=folder,
        recipe=recipe,
        command=str(plan.get("command") or f"python -m rlhf_lab +recipe={recipe}"),
        question=str(plan.get("question") or ""),
        hypothesis=plan.get("hypothesis"),
        compare=compare,
        baseline=rows[0]["level"] if baseline is None else level_name(baseline),
        metrics=tuple(metrics),
        primary=primary,
        curves=plan.get("curves"),
        by=str(plan.get("by") or ""),
        predicts=tuple(plan.get("predicts") or ()),
        size=str(plan.get("size") or "full"),
        factors=factors,
        frame=pd.DataFrame(rows),
        policies=pd.DataFrame(policies),
        gold_source=" or ".join(gold_sources),
        replication=replication,
        labels=plan.get("labels") or {},
        fronts=tuple(plan.get("fronts") or ()),
        prompts=prompts,
        worlds=worlds,
    )


def _read_plan(folder: Path) -> dict[str, Any]:
    problems: list[str] = []
    plan = read_json(folder / "study.json", problems)
    problems += [f"study.json lacks {key!r}" for key in ("compare", "metrics", "jobs") if not plan.get(key)]
    if problems:
        raise DataError(f"{folder} is not a readable study directory: " + "; ".join(problems))
    return plan


def _read_job(folder: Path, index: int, metrics: list[str]) -> tuple[dict[str, Any], Run | None]:
    """Status, error, run path and metrics of one job."""
    row: dict[str, Any] = {"index": index, "status": "not run", "error": "", "run": None, "changed": ""}
    for name in metrics:
        row |= {name: math.nan, f"{name}/low": math.nan, f"{name}/high": math.nan, f"{name}/n": 0}
    file = folder / "jobs" / str(index) / "job.json"
    if not file.is_file():
        return row, None
    problems: list[str] = []
    job: Mapping[str, Any] = read_json(file, problems)
    row |= {"status": str(job.get("status") or "unreadable"), "error": job.get("error") or "; ".join(problems)}
    if not job.get("run"):
        return row, None
    row["run"] = folder / str(job["run"])  # an absolute path stays as it is
    if not is_run(row["run"]):
        if row["status"] == COMPLETED:
            row |= {"status": "failed", "error": f"its run directory {job['run']} is missing"}
        return row, None
    run = read_run(row["run"])
    row["changed"] = ", ".join(run.changed)
    if row["status"] == COMPLETED and run.status != COMPLETED:  # job and run disagree: the run counts
        row |= {"status": run.status, "error": run.error or f"its run is {run.status}"}
    row["error"] = row["error"] or run.error or ""
    for name in metrics:
        estimate = run.metric(name)
        if estimate is not None:
            row |= {name: estimate.mean, f"{name}/n": estimate.n}
            row |= {f"{name}/low": estimate.low, f"{name}/high": estimate.high}
    return row, run
