"""Read a study directory into tidy frames: one row per job, whether it completed, failed or never ran.

Everything is read by key from `study.json`, `job.json` and each run's `result.json`; names and logs are not parsed.
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
from rlhf_lab.results.gains import policies_on_path, policy_of, prompt_means
from rlhf_lab.results.rundir import StoredRun, is_run, read_json, read_run
from rlhf_lab.stages.provenance import Provenance
from rlhf_lab.studies.labels import configured_label
from rlhf_lab.studies.look_log import NOT_NEEDED, LookLog
from rlhf_lab.studies.registration import Registration, baseline_level
from rlhf_lab.studies.replication import Replication

COMPLETED = "completed"
NOT_RUN = "not run"
"""Status of jobs that never started."""
RUN_SEED = "run seed"
"""Column with the seed of each job's run, also if the study does not sweep seeds."""
ALL_SEEDS = "all seeds"
"""Name of the only level of a sweep over seeds alone: seeds are repetitions and are not compared with each other."""


@dataclass(frozen=True)
class Study:
    """Sweep over one factor, repeated over seeds.

    Attributes:
        path: the study directory.
        question, hypothesis: question of the recipe, and expected answer.
        compare: override that is compared, e.g. "algorithm.buffer".
        baseline: level of `compare` that the others are compared with.
        metrics: metrics to tabulate, the primary one, which the question is about, first.
        curves: kind of curves that the report adds, or None.
        by: another override; levels are compared within each of its values. "" compares over all jobs.
        predicts: claims that the numbers decide, as `sections.Prediction` in plain values.
        size: `full`, `quick` or `smoke`.
        factors: every override that some job sets.
        frame: one row per job: index, status, error, run (Path or None), changed (`StoredRun.changed`, with commas),
            level, `RUN_SEED`, one column per factor, and per metric m the columns m, "m/low", "m/high", "m/n".
        policies: one row per evaluated policy of each completed job: index, level, seed, position, policy, joined
            (True if it is on the path of its run's training), and one column per metric.
        gold_source: kinds of gold that the runs have, as in `StoredRun.gold_source`; empty if none has gold.
        replication: what differs between the study's seeds besides training.
        labels: swept key → labels of its values: a text with "{}", or value → text.
        arms: name of an arm → its settings, if the study compares arms.
        fronts, correlations, rates, crossings: plain values of `ParetoSettings` and so on in `study_settings`.
        prompts: job → metrics of its last policy by prompt, if all seeds are tested on the same prompts.
        log: looks of a study that stops when its claims are decided; None for a study with a fixed list of seeds.
        registration: registered claims, in the order of `predicts`; empty for the study of a search.
        provenance: where the numbers come from, as of the last page; empty for a study without a page.
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
    replication: Replication
    labels: Mapping[str, Any] = field(default_factory=dict)
    arms: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    fronts: tuple[Mapping[str, Any], ...] = ()
    correlations: tuple[Mapping[str, Any], ...] = ()
    rates: tuple[Mapping[str, Any], ...] = ()
    crossings: tuple[Mapping[str, Any], ...] = ()
    prompts: Mapping[int, pd.DataFrame] = field(default_factory=dict)
    log: LookLog | None = None
    registration: Registration = field(default_factory=Registration)
    provenance: Provenance = field(default_factory=Provenance)

    @property
    def has_gold(self) -> bool:
        return bool(self.gold_source)

    def label(self, level: str) -> str:
        return self._label_of(self.compare, level)

    def panel_label(self, value: str) -> str:
        """Return the label of a value of `by`."""
        return self._label_of(self.by, value)

    def _label_of(self, key: str, level: str) -> str:
        """Return the label of a level of any factor; without a configured label, the setting's name and the level."""
        if level == ALL_SEEDS:
            return level
        label = configured_label(self.labels, key, level)
        if label is not None:
            return label
        if is_choice(key) or key.startswith("needs."):  # names of components and recipes need no prefix
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
        """Return (value of `by`, jobs with that value) in job order; [("", all jobs)] if the study has no panels."""
        if self.by not in self.factors:  # no `by`, or the command line gave it a single value
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
        return self.frame[self.frame["status"] != COMPLETED]

    @property
    def changed(self) -> pd.DataFrame:
        """Jobs whose run has changed since it was completed; they count with the present content of their files."""
        return self.frame[self.frame["changed"] != ""]


def is_study(directory: Path) -> bool:
    return (directory / "study.json").is_file()


def read_study(directory: Path | str) -> Study:
    """Read a study directory. Raise DataError if study.json is missing or lacks a field."""
    directory = Path(directory)
    plan = _read_plan(directory)
    compare = str(plan["compare"])
    metrics = [str(name) for name in plan["metrics"]]
    primary = str(plan.get("primary") or metrics[0])
    metrics = [primary] + [name for name in metrics if name != primary]
    factors = tuple(dict.fromkeys(key for job in plan["jobs"] for key in job.get("overrides", {})))
    rows: list[dict[str, Any]] = []
    policies: list[dict[str, Any]] = []
    gold_sources: dict[str, None] = {}
    replication = Replication.from_dict(plan["replication"])
    prompts: dict[int, pd.DataFrame] = {}
    for i, job in enumerate(plan["jobs"]):
        overrides = dict(job.get("overrides", {}))
        job_index = int(job.get("index", i))
        row, run = _read_job(directory, job_index, metrics, job.get("run"))
        row["level"] = ALL_SEEDS if compare == "seed" else level_name(overrides.get(compare))
        rows.append({**row, RUN_SEED: job.get("seed"), **{factor: overrides.get(factor) for factor in factors}})
        if run is not None and row["status"] == COMPLETED:
            gold_sources |= {run.gold_source: None} if run.has_gold else {}
            # Values by prompt are only needed if seeds and prompts are crossed.
            if replication.shares_prompts and len(run.evaluation):
                last_policy = run.evaluation[run.evaluation["policy"] == policy_of(run)]
                prompts[row["index"]] = prompt_means(last_policy, metrics)
            # Jobs of a study that sweeps no seed have the seed of the command, and are not independent.
            seed = overrides.get("seed", run.manifest.get("seed"))
            job_keys = {"index": row["index"], "level": row["level"], "seed": seed}
            path = policies_on_path(run)
            for position, policy in enumerate(run.policies):
                means = {name: estimate.mean for name, estimate in policy.metrics.items()}
                index = {"position": position, "policy": policy.name, "joined": policy.name in path}
                policies.append({**job_keys, **index, **means})
    recipe = str(plan.get("recipe") or directory.name)
    log = LookLog.from_dict(plan["looks"]) if plan.get("looks") else None
    return Study(
        path=directory,
        recipe=recipe,
        command=str(plan.get("command") or f"python -m rlhf_lab +recipe={recipe}"),
        question=str(plan.get("question") or ""),
        hypothesis=plan.get("hypothesis"),
        compare=compare,
        baseline=ALL_SEEDS if compare == "seed" else baseline_level(plan),
        metrics=tuple(metrics),
        primary=primary,
        curves=plan.get("curves"),
        by=str(plan.get("by") or ""),
        predicts=tuple(plan.get("predicts") or ()),
        size=str(plan.get("size") or "full"),
        factors=factors,
        frame=_without_unneeded(pd.DataFrame(rows), log),
        policies=pd.DataFrame(policies),
        gold_source=" or ".join(gold_sources),
        replication=replication,
        labels=plan.get("labels") or {},
        arms=plan.get("arms") or {},
        fronts=tuple(plan.get("fronts") or ()),
        correlations=tuple(plan.get("correlations") or ()),
        rates=tuple(plan.get("rates") or ()),
        crossings=tuple(plan.get("crossings") or ()),
        prompts=prompts,
        log=log,
        registration=Registration.from_dict(plan["registration"]) if "registration" in plan else Registration(),
        provenance=Provenance.from_dict(plan["provenance"]) if "provenance" in plan else Provenance(),
    )


def _without_unneeded(frame: pd.DataFrame, log: LookLog | None) -> pd.DataFrame:
    """Drop the jobs that a study which stopped early did not need: skipped ones, and all seeds after the last one run.

    The first seed is kept, so that every level has a row.
    """
    if log is None:
        return frame
    position = frame["seed"].map(log.seeds.index)
    started = frame["status"] != NOT_RUN
    last = int(position[started].max()) if started.any() else 0
    return frame[(frame["status"] != NOT_NEEDED) & (position <= last)]


def _read_plan(directory: Path) -> dict[str, Any]:
    """Return the content of study.json. Raise DataError if it is unreadable or lacks a required key."""
    problems: list[str] = []
    plan = read_json(directory / "study.json", problems)
    required = ("compare", "metrics", "replication", "jobs")
    problems += [f"study.json lacks {key!r}" for key in required if not plan.get(key)]
    if problems:
        raise DataError(
            f"{directory} is not a readable study directory: {'; '.join(problems)}; pass the directory of a sweep, or "
            "start the study again"
        )
    return plan


def _read_job(
    directory: Path, index: int, metrics: list[str], planned_run: str | None
) -> tuple[dict[str, Any], StoredRun | None]:
    """Return the table row of one job (status, error, run path, metrics) and its run, if it has one.

    `planned_run` is the directory in which the job's result is, or will be, stored.
    """
    row: dict[str, Any] = {"index": index, "status": NOT_RUN, "error": "", "run": None, "changed": ""}
    for name in metrics:
        row |= {name: math.nan, f"{name}/low": math.nan, f"{name}/high": math.nan, f"{name}/n": 0}
    file = directory / "jobs" / str(index) / "job.json"
    problems: list[str] = []
    job: Mapping[str, Any] = read_json(file, problems) if file.is_file() else {}
    is_unfinished = job.get("status") in (None, "interrupted")
    has_run = is_unfinished and planned_run and is_run(Path(planned_run))
    if has_run and read_run(Path(str(planned_run))).status == COMPLETED:
        # The command stopped before it reached this job, but an earlier command has stored the job's result.
        job = {"status": COMPLETED, "run": planned_run}
    elif not file.is_file():
        return row, None
    row["status"] = str(job.get("status") or "unreadable")
    row["error"] = job.get("error") or "; ".join(problems)
    if not job.get("run"):
        return row, None
    row["run"] = directory / str(job["run"])  # an absolute path stays as it is
    if not is_run(row["run"]):
        if row["status"] == COMPLETED:
            row |= {"status": "failed", "error": f"its run directory {job['run']} is missing"}
        return row, None
    run = read_run(row["run"])
    row["changed"] = ", ".join(run.changed)
    if row["status"] == COMPLETED and run.status != COMPLETED:  # if job and run disagree, the run decides
        row |= {"status": run.status, "error": run.error or f"its run is {run.status}"}
    row["error"] = row["error"] or run.error or ""
    for name in metrics:
        estimate = run.metric(name)
        if estimate is not None:
            row |= {name: estimate.mean, f"{name}/n": estimate.n}
            row |= {f"{name}/low": estimate.low, f"{name}/high": estimate.high}
    return row, run
