"""Runs the jobs of a sweep through a Hydra launcher and ends in one table, whatever happened to the jobs.

The study directory holds study.json (all planned jobs, written first) and jobs/<index>/job.json (written by each job),
so `report` works on a partial sweep and a failed job is a row of the table.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from rich.markup import escape

from rlhf_lab.config import check, compose, root, schema, typed_sweep
from rlhf_lab.config.overrides import forced, literal
from rlhf_lab.config.smoke import NOTICE
from rlhf_lab.config.study_settings import FrontOf, Study
from rlhf_lab.core import invocation
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError, LabError
from rlhf_lab.core.files import check_outputs, make_folder, read_json, write_json, write_text
from rlhf_lab.core.machine import PROCESSES, usable_cores
from rlhf_lab.core.metrics import metric
from rlhf_lab.core.redaction import redacted, redacted_arguments
from rlhf_lab.core.signals import die_with_parent
from rlhf_lab.reports.policy_table import number
from rlhf_lab.stages import artifacts, preflight
from rlhf_lab.studies.replication import replication
from rlhf_lab.trackers.settings import marked

SWEEP = "RLHF_LAB_SWEEP"
"""Environment variable of the jobs that joblib starts: process id of the sweep, which they must not outlive."""
SUBMITTED = "SUBMITIT_EXECUTOR"
"""Environment variable of the jobs that submitit started."""
LAUNCHERS = {
    "joblib": ("hydra.launcher.n_jobs={processes}", "hydra.launcher.verbose=0"),
    "submitit_local": ("hydra.launcher.timeout_min=10080", "hydra.sweeper.max_batch_size={processes}"),
    "submitit_slurm": (
        "hydra.launcher.max_num_timeout=5",
        "hydra.launcher.cpus_per_task=2",
        "hydra.launcher.setup=['export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK']",
        "++hydra.launcher.additional_parameters.requeue=true",
    ),
}
"""Hydra launcher → its settings for our jobs; the command line overrides them.

By default submitit starts all jobs of a sweep at once and does not requeue a job at its time limit. SRUN_CPUS_PER_TASK
is set because srun does not take the number of CPUs from sbatch.
"""


def run(command: compose.Command, config_dir: str | None, launch: Callable[[Sequence[str]], int]) -> int:
    """Run every job of a checked command and write the study's table, plot and report. Returns the exit status."""
    study = command.study
    if study is None:
        raise ConfigError("--multirun without a swept value; write for example algorithm.beta=0.1,0.3 seed=0,1,2")
    check_fronts(study.fronts)
    check_outputs(Path(command.configs[0].outputs))
    folder = study_folder(command)
    stages = [artifacts.plan(checked, command.recipe or "sweep") for checked in command.configs]
    preflight.check(stages)
    _write_plan(folder, command, study, stages)
    stored = sum(stage.result() is not None for stage in stages)
    console.print(f"[bold]{command.recipe}[/]: {escape(redacted(study.question))}", soft_wrap=True)
    if command.configs[0].size == "smoke":
        console.print(f"  [yellow]{NOTICE}[/]", soft_wrap=True)
    console.print(f"  {len(stages)} jobs, {stored} of them already in the store; folder {folder}", soft_wrap=True)
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra raises errors, and `main` explains them
    try:
        arguments = _hydra_arguments(command, study, folder, config_dir)
        _launch_jobs(command, arguments, folder, launch)
    finally:
        failed = _write_results(folder, len(stages))
    return 1 if failed else 0


def check_fronts(fronts: Sequence[FrontOf]) -> None:
    """Raise ConfigError for a front of a metric of which no direction is an improvement."""
    for front in fronts:
        for name in front.metrics:
            if not metric(name).better:
                raise ConfigError(
                    f"study.fronts: it is not known whether a higher or a lower {name} is better, so no level can "
                    "dominate another; name a metric with a direction, such as accuracy or gold_agreement"
                )


def study_folder(command: compose.Command) -> Path:
    """The directory of a checked command's study. Shared overrides, or a typed sweep, add a hash to its name."""
    name = (command.recipe or "sweep").removeprefix("study/").replace("/", "-")
    shared = _shared_overrides(command)
    if shared or command.typed:
        name += "-" + sha256("\n".join(sorted(shared)).encode()).hexdigest()[:6]
    return Path(command.configs[0].outputs) / "studies" / name


def _shared_overrides(command: compose.Command) -> list[str]:
    """Overrides that all jobs share, without the recipe and Hydra's own."""
    return [override for override in command.overrides if not override.startswith(("+recipe=", "hydra"))]


def _hide_secrets(path: Path) -> None:
    """Take secrets out of the settings that Hydra writes of a sweep; nothing reads them."""
    if path.is_file():
        write_text(path, redacted(path.read_text(encoding="utf-8")))


def _launch_jobs(
    command: compose.Command, arguments: list[str], folder: Path, launch: Callable[[Sequence[str]], int]
) -> None:
    """Run the jobs through their launcher, and write job.json for a submitted job that ended without writing it."""
    invocation.begin_building()
    launcher = _chosen_launcher(command)
    if launcher not in ("submitit_slurm", "submitit_local"):
        try:
            launch(arguments)
        finally:
            _hide_secrets(folder / "multirun.yaml")
        return
    from rlhf_lab.sweeps.submitted import followed

    console.print(f"  jobs go to {launcher}; what they print is in {folder}/.submitit", soft_wrap=True)
    try:
        with followed(launcher) as ends:
            launch(arguments)
    finally:
        _hide_secrets(folder / "multirun.yaml")
    for index, problem in enumerate(ends):
        path = folder / "jobs" / str(index) / "job.json"
        if problem is not None and not path.exists():
            make_folder(path.parent)
            write_json(path, {"status": "failed", "run": None, "error": problem})


def _swept_levels(command: compose.Command) -> dict[str, list[Any]]:
    """Swept key → its values, both in job order."""
    levels: dict[str, list[Any]] = {}
    for job in command.jobs:
        for key, value in job.items():
            if value not in levels.setdefault(key, []):
                levels[key].append(value)
    return levels


def _write_plan(
    folder: Path,
    command: compose.Command,
    study: Study,
    stages: Sequence[artifacts.Stage],
) -> None:
    """Write study.json, and remove the records of an earlier sweep's jobs."""
    make_folder(folder)
    for index in range(len(command.jobs)):
        (folder / "jobs" / str(index) / "job.json").unlink(missing_ok=True)
    metrics_chosen_later = command.typed and not any(_names_metrics(override) for override in command.overrides)
    plan = {
        "recipe": command.recipe,
        "command": invocation.command_line(),
        "overrides": redacted_arguments(_shared_overrides(command)),
        "question": redacted(study.question),
        "hypothesis": redacted(study.hypothesis),
        "compare": study.compare,
        "baseline": study.baseline,
        "metrics": study.metrics,
        "primary": study.metrics[0],
        "metrics_from": typed_sweep.FROM_RESULTS if metrics_chosen_later else typed_sweep.WRITTEN,
        "curves": study.curves,
        "by": study.by,
        "labels": study.labels,
        "replication": replication(stages, command.jobs).to_dict(),
        "size": "smoke" if command.configs[0].size == "smoke" else study.size,
        "predicts": [schema.plain(claim) for claim in study.predicts],
        "jobs": [{"index": index, "overrides": redacted(job)} for index, job in enumerate(command.jobs)],
    }
    if study.fronts:
        plan["fronts"] = [schema.plain(front) for front in study.fronts]
    write_json(folder / "study.json", plan)


def _names_metrics(override: str) -> bool:
    return override.lstrip("+").startswith("study.metrics")


def _hydra_arguments(command: compose.Command, study: Study, folder: Path, config_dir: str | None) -> list[str]:
    """Hydra's command line for the sweep. Seeds vary fastest, so parallel jobs rarely wait for the same upstream."""
    flags = ["--multirun"]
    if config_dir:
        flags.append(f"--config-dir={config_dir}")
    arguments = list(command.overrides)
    for key, levels in _swept_levels(command).items():
        arguments.append(f"{forced(key)}={','.join(literal(level) for level in levels)}")
    arguments += [f"hydra.sweep.dir={folder}", "hydra.sweep.subdir=jobs/${hydra.job.num}"]
    launcher = _chosen_launcher(command)
    processes = min(study.processes, usable_cores(), len(command.jobs))
    if launcher == "submitit_slurm":
        processes = 1  # a job has the cores that Slurm gave it to itself
    if launcher is None and processes > 1 and find_spec("hydra_plugins.hydra_joblib_launcher"):
        launcher = "joblib"
        arguments.append("hydra/launcher=joblib")
    os.environ[PROCESSES] = str(processes)
    if launcher == "joblib":
        os.environ[SWEEP] = str(os.getpid())
    settings = [setting.format(processes=processes) for setting in LAUNCHERS.get(launcher or "", ())]
    return [*flags, *settings, *arguments]  # flags first: between settings argparse refuses them


def _chosen_launcher(command: compose.Command) -> str | None:
    """The Hydra launcher that the command line chooses."""
    prefix = "hydra/launcher="
    chosen = [override.removeprefix(prefix) for override in command.overrides if override.startswith(prefix)]
    return chosen[0] if chosen else None


def run_job(
    values: dict[str, Any], run_stage: Callable[[artifacts.Stage], tuple[int, dict[str, Any]]]
) -> dict[str, Any]:
    """One job: run its stage and write job.json, also when it fails."""
    if os.environ.get(PROCESSES, "1") != "1":
        die_with_parent(signal.SIGTERM)  # a worker must not outlive the sweep that started it
        if _has_outlived_sweep():  # the sweep ended while the worker was starting
            os._exit(1)
    hydra_runtime = HydraConfig.get().runtime
    folder = Path(hydra_runtime.output_dir)
    recipe = str(hydra_runtime.choices.get("recipe"))
    make_folder(folder)
    record: dict[str, Any] = {"status": "interrupted", "run": None, "error": None}
    received_signals = _watch_signals()
    try:
        job_values = compose.sized({**values, "study": None}, _written_keys())
        stage = _plan_job(check.check(job_values), recipe, folder)
        record["run"] = str(stage.folder.resolve())
        result = _run_in_turn(stage, folder, run_stage)
        record |= {"status": result["status"], "error": result.get("error")}
    except LabError as error:
        record |= {"status": "failed", "error": redacted(str(error))}
        console.print(f"[red]{escape(job_words(folder, 'failed'))}:[/] {escape(str(error))}", soft_wrap=True)
    except Exception as error:  # a job's bug must not take the sweep's table with it
        record |= {"status": "failed", "error": redacted(f"{type(error).__name__}: {error}")}
        (folder / "error.txt").write_text(redacted(traceback.format_exc()))
        message = f"[red]{escape(job_words(folder, 'failed'))}:[/] {escape(record['error'])}"
        console.print(f"{message}, see {folder}/error.txt", soft_wrap=True)
    except KeyboardInterrupt:  # outside training, whose interruption is a result and no exception
        record["error"] = "stopped"
    finally:
        write_json(folder / "job.json", record)
        if _has_outlived_sweep():  # joblib's worker would keep the exception for the sweep, and wait for its next job
            os._exit(1)
    if record["status"] == "interrupted" and not _requeue_refused(folder, record, received_signals()):
        raise KeyboardInterrupt  # a stop is meant for the whole sweep, not for one of its jobs
    return record


def _has_outlived_sweep() -> bool:
    """Whether this is a worker of joblib whose sweep has ended; its parent is then another process."""
    return os.environ.get(SWEEP) not in (None, str(os.getppid()), str(os.getpid()))


def _run_in_turn(
    stage: artifacts.Stage, folder: Path, run_stage: Callable[[artifacts.Stage], tuple[int, dict[str, Any]]]
) -> dict[str, Any]:
    """Run a job's stage. In parallel jobs it prints to a file, because their tables would be interleaved."""
    parallel = SWEEP in os.environ and os.environ.get(PROCESSES, "1") != "1"
    if not parallel:
        return run_stage(stage)[1]
    started = time.monotonic()
    log = folder / "output.txt"
    console.print(f"  {escape(job_words(folder, 'starts'))}; it prints to {log}", soft_wrap=True)
    with log.open("w", encoding="utf-8", buffering=1) as file, redirect_stdout(file):
        _, result = run_stage(stage)
    seconds = time.monotonic() - started
    # One call is one write, so lines of different processes stay whole.
    console.print(f"  {escape(done_words(folder, result, seconds))}", soft_wrap=True)
    return result


def job_words(folder: Path, event: str) -> str:
    """What happened to the job of a folder: "job 3 of 12 done: algorithm.beta=0.3 seed=1"."""
    jobs = read_json(folder.parents[1] / "study.json")["jobs"]
    swept = " ".join(f"{key}={literal(value)}" for key, value in jobs[int(folder.name)]["overrides"].items())
    return f"job {int(folder.name) + 1} of {len(jobs)} {event}: {swept}"


def done_words(folder: Path, result: Mapping[str, Any], seconds: float) -> str:
    """How a job ended, in one line with the study's primary metric, or else the run's own."""
    metrics = result.get("metrics") or {}
    if result.get("policies"):
        metrics = {**metrics, **result["policies"][-1]["metrics"]}
    study_primary = read_json(folder.parents[1] / "study.json")["primary"]
    candidates = [study_primary, *(result.get("primary") or [])]
    primary = next((name for name in candidates if name in metrics), None)
    value = f"{primary} {number(metrics[primary])}, " if primary else ""
    event = "done" if result["status"] == "completed" else result["status"]
    return f"{job_words(folder, event)}: {value}{seconds:.0f} s"


def _written_keys() -> set[str]:
    """Keys that this job's command line names, swept ones included."""
    overrides = OverridesParser.create().parse_overrides(list(HydraConfig.get().overrides.task))
    return {override.key_or_group for override in overrides}


def _watch_signals() -> Callable[[], list[int]]:
    """A function that lists the signals received by a job of submitit, which may requeue it; empty in other jobs."""
    if SUBMITTED not in os.environ:
        return list
    from rlhf_lab.sweeps.submitted import signals_from_now

    return signals_from_now()


def _requeue_refused(folder: Path, record: dict[str, Any], signals: list[int]) -> bool:
    """Have submitit requeue a stopped job, which ends this process. True when it has been requeued too often."""
    if not signals:
        return False
    from rlhf_lab.sweeps.submitted import queue_again

    reason = queue_again(signals)
    if reason:
        write_json(folder / "job.json", record | {"error": reason})
    return reason is not None


def _plan_job(checked: root.Config, recipe: str, folder: Path) -> artifacts.Stage:
    """A job's stage. Trackers of all its stages get the study's name, that of the last also what this job swept."""
    directory = folder.parents[1]
    study = read_json(directory / "study.json")
    overrides = study["jobs"][int(folder.name)]["overrides"]
    compared_first = sorted(overrides, key=lambda key: key != study["compare"])
    swept = {key: overrides[key] for key in compared_first}
    in_study = checked.replace(tracker=marked(checked.tracker, group=directory.name))
    stage = artifacts.plan(in_study, recipe)
    last_config = stage.config.replace(tracker=marked(stage.config.tracker, swept=swept))
    return dataclasses.replace(stage, config=last_config)


def _write_results(folder: Path, jobs: int) -> int:
    """Write table, plot and report; returns the number of jobs that did not complete."""
    from rlhf_lab.reports.report import write_study_report

    typed_sweep.choose_metrics(folder)
    report = write_study_report(folder)
    print_table(folder)
    console.print(f"table   {folder / 'table.md'}\nplot    {folder / 'plot.svg'}\nreport  {report}", soft_wrap=True)
    records = [read_json(folder / "jobs" / str(index) / "job.json") or {} for index in range(jobs)]
    return sum(record.get("status") != "completed" for record in records)


def print_table(folder: Path) -> None:
    """The table of a study directory; nothing for a run directory."""
    from rlhf_lab.studies.finding import write_finding
    from rlhf_lab.studies.frame import is_study, read_study
    from rlhf_lab.studies.table import build_sections, rich_table

    if is_study(folder):
        study = read_study(folder)
        sections = build_sections(study)
        finding = write_finding(study, sections)
        console.print(escape(finding.sentence))
        console.print(escape(finding.caveat), style="dim")
        console.print(rich_table(study, sections))
