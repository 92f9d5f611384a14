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

from rlhf_lab.config import compose, root, schema, sections, typed_sweep
from rlhf_lab.config.overrides import forced, literal
from rlhf_lab.config.smoke import NOTICE
from rlhf_lab.core import invocation
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError, LabError
from rlhf_lab.core.files import check_outputs, make_folder, read_json, write_json
from rlhf_lab.core.machine import PROCESSES, usable_cores
from rlhf_lab.core.signals import die_with_parent
from rlhf_lab.reports.policy_table import number
from rlhf_lab.stages import artifacts, preflight
from rlhf_lab.studies.replication import replication
from rlhf_lab.trackers.settings import marked

SWEEP = "RLHF_LAB_SWEEP"
"""Environment variable of the jobs that joblib starts: the process that they may not outlive."""
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
"""Hydra launcher → its settings for our jobs; what the command line says of them wins. By default submitit starts all
jobs of a sweep at once and does not queue a job again at its time limit; srun does not take its CPUs from sbatch."""


def run(command: compose.Command, config_dir: str | None, launch: Callable[[Sequence[str]], int]) -> int:
    """Run every job of a checked command and write the study's table, plot and report. Returns the exit status."""
    study = command.study
    if study is None:
        raise ConfigError("--multirun without a swept value; write for example algorithm.beta=0.1,0.3 seed=0,1,2")
    check_outputs(Path(command.configs[0].outputs))
    folder, fixed = study_folder(command), _fixed(command)
    stages = [artifacts.plan(checked, command.recipe or "sweep") for checked in command.configs]
    preflight.check(stages)
    _write_plan(folder, command, study, fixed, stages)
    done = sum(stage.result() is not None for stage in stages)
    console.print(f"[bold]{command.recipe}[/]: {escape(study.question)}", soft_wrap=True)
    if command.configs[0].size == "smoke":
        console.print(f"  [yellow]{NOTICE}[/]", soft_wrap=True)
    console.print(f"  {len(stages)} jobs, {done} of them already in the store; folder {folder}", soft_wrap=True)
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # errors come back to `main`, which explains them
    try:
        _launch(command, _arguments(command, study, folder, config_dir), folder, launch)
    finally:
        failed = _finish(folder, len(stages))
    return 1 if failed else 0


def study_folder(command: compose.Command) -> Path:
    """Where the study of a checked command lies; fixed overrides, or a typed sweep, mark its name."""
    name = (command.recipe or "sweep").removeprefix("study/").replace("/", "-")
    fixed = _fixed(command)
    if fixed or command.typed:
        name += "-" + sha256("\n".join(sorted(fixed)).encode()).hexdigest()[:6]
    return Path(command.configs[0].outputs) / "studies" / name


def _fixed(command: compose.Command) -> list[str]:
    """Overrides that all jobs share, but for the recipe and Hydra's own."""
    return [override for override in command.overrides if not override.startswith(("+recipe=", "hydra"))]


def _launch(
    command: compose.Command, arguments: list[str], folder: Path, launch: Callable[[Sequence[str]], int]
) -> None:
    """Run the jobs where the launcher takes them; a job that ended without a word of its own gets a record here."""
    invocation.begin_building()
    launcher = _launcher(command)
    if launcher not in ("submitit_slurm", "submitit_local"):
        launch(arguments)
        return
    from rlhf_lab.sweeps.submitted import followed

    console.print(f"  jobs go to {launcher}; what they print is in {folder}/.submitit", soft_wrap=True)
    with followed(launcher) as ends:
        launch(arguments)
    for index, end in enumerate(ends):
        path = folder / "jobs" / str(index) / "job.json"
        if end is not None and not path.exists():
            make_folder(path.parent)
            write_json(path, {"status": "failed", "run": None, "error": end})


def _levels(command: compose.Command) -> dict[str, list[Any]]:
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
    study: sections.Study,
    fixed: list[str],
    stages: Sequence[artifacts.Stage],
) -> None:
    make_folder(folder)
    jobs = [{"index": index, "overrides": job} for index, job in enumerate(command.jobs)]
    for index in range(len(jobs)):
        (folder / "jobs" / str(index) / "job.json").unlink(missing_ok=True)
    values: dict[str, Any] = {"recipe": command.recipe, "command": invocation.command_line(), "overrides": fixed}
    values |= {"question": study.question, "hypothesis": study.hypothesis, "compare": study.compare}
    values |= {"baseline": study.baseline, "metrics": study.metrics, "primary": study.metrics[0]}
    chosen_later = command.typed and not any(_names_metrics(override) for override in command.overrides)
    values |= {"metrics_from": typed_sweep.FROM_RESULTS if chosen_later else typed_sweep.WRITTEN}
    values |= {"curves": study.curves, "by": study.by, "labels": study.labels}
    values |= {"replication": replication(stages, command.jobs).to_dict()}
    values |= {"size": "smoke" if command.configs[0].size == "smoke" else study.size}
    values |= {"predicts": [schema.plain(claim) for claim in study.predicts], "jobs": jobs}
    write_json(folder / "study.json", values)


def _names_metrics(override: str) -> bool:
    return override.lstrip("+").startswith("study.metrics")


def _arguments(command: compose.Command, study: sections.Study, folder: Path, config_dir: str | None) -> list[str]:
    """Hydra's command line for the sweep. Seeds vary fastest, so parallel jobs rarely wait for the same upstream."""
    levels = _levels(command)
    flags = ["--multirun", *([f"--config-dir={config_dir}"] if config_dir else [])]
    arguments = list(command.overrides)
    arguments += [f"{forced(key)}={','.join(literal(v) for v in values)}" for key, values in levels.items()]
    arguments += [f"hydra.sweep.dir={folder}", "hydra.sweep.subdir=jobs/${hydra.job.num}"]
    launcher = _launcher(command)
    processes = 1 if launcher == "submitit_slurm" else min(study.processes, usable_cores(), len(command.jobs))
    if launcher is None and processes > 1 and find_spec("hydra_plugins.hydra_joblib_launcher"):
        launcher = "joblib"
        arguments.append("hydra/launcher=joblib")
    os.environ[PROCESSES] = str(processes)
    if launcher == "joblib":
        os.environ[SWEEP] = str(os.getpid())
    settings = [setting.format(processes=processes) for setting in LAUNCHERS.get(launcher or "", ())]
    return [*flags, *settings, *arguments]  # argparse takes flags between settings for an error


def _launcher(command: compose.Command) -> str | None:
    """The Hydra launcher that the command line chooses."""
    return next((o.partition("=")[2] for o in command.overrides if o.startswith("hydra/launcher=")), None)


def run_job(
    values: dict[str, Any], run_stage: Callable[[artifacts.Stage], tuple[int, dict[str, Any]]]
) -> dict[str, Any]:
    """One job: run its stage and write job.json, also when it fails."""
    if os.environ.get(PROCESSES, "1") != "1":
        die_with_parent(signal.SIGTERM)  # a worker must not outlive the sweep that started it
        if os.environ.get(SWEEP) not in (None, str(os.getppid()), str(os.getpid())):
            os._exit(1)  # it ended while the worker was starting
    settings = HydraConfig.get()
    folder, recipe = Path(settings.runtime.output_dir), str(settings.runtime.choices.get("recipe"))
    make_folder(folder)
    record: dict[str, Any] = {"status": "interrupted", "run": None, "error": None}
    came = _signals()
    try:
        stage = _marked(root.check(compose.sized({**values, "study": None}, _written())), recipe, folder)
        record["run"] = str(stage.folder.resolve())
        result = _run_in_turn(stage, folder, run_stage)
        record |= {"status": result["status"], "error": result.get("error")}
    except LabError as error:
        record |= {"status": "failed", "error": str(error)}
        console.print(f"[red]{escape(job_words(folder, 'failed'))}:[/] {escape(str(error))}", soft_wrap=True)
    except Exception as error:  # a job's bug must not take the sweep's table with it
        record |= {"status": "failed", "error": f"{type(error).__name__}: {error}"}
        (folder / "error.txt").write_text(traceback.format_exc())
        failed = f"[red]{escape(job_words(folder, 'failed'))}:[/] {escape(record['error'])}"
        console.print(f"{failed}, see {folder}/error.txt", soft_wrap=True)
    except KeyboardInterrupt:  # while nothing was trained
        record["error"] = "stopped"
    finally:
        write_json(folder / "job.json", record)
    if record["status"] == "interrupted" and not _given_up(folder, record, came()):
        raise KeyboardInterrupt  # a stop is meant for the sweep, not for one of its jobs
    return record


def _run_in_turn(
    stage: artifacts.Stage, folder: Path, run_stage: Callable[[artifacts.Stage], tuple[int, dict[str, Any]]]
) -> dict[str, Any]:
    """Run a job's stage. Beside other jobs it prints to a file: tables of several would be printed into each other."""
    parallel = SWEEP in os.environ and os.environ.get(PROCESSES, "1") != "1"
    if not parallel:
        return run_stage(stage)[1]
    started = time.monotonic()
    log = folder / "output.txt"
    console.print(f"  {escape(job_words(folder, 'starts'))}; it prints to {log}", soft_wrap=True)
    with log.open("w", encoding="utf-8", buffering=1) as file, redirect_stdout(file):
        _, result = run_stage(stage)
    # One call is one write, so lines of different processes stay whole.
    seconds = time.monotonic() - started
    console.print(f"  {escape(done_words(folder, result, seconds))}", soft_wrap=True)
    return result


def job_words(folder: Path, event: str) -> str:
    """What happened to the job of a folder: "job 3 of 12 done: algorithm.beta=0.3 seed=1"."""
    jobs = read_json(folder.parents[1] / "study.json")["jobs"]
    swept = " ".join(f"{key}={literal(value)}" for key, value in jobs[int(folder.name)]["overrides"].items())
    return f"job {int(folder.name) + 1} of {len(jobs)} {event}: {swept}"


def done_words(folder: Path, result: Mapping[str, Any], seconds: float) -> str:
    """How a job ended, in one line with the study's first metric, or the run's where it has not got that."""
    metrics = result.get("metrics") or {}
    if result.get("policies"):
        metrics = {**metrics, **result["policies"][-1]["metrics"]}
    wanted = [read_json(folder.parents[1] / "study.json")["primary"], *(result.get("primary") or [])]
    primary = next((name for name in wanted if name in metrics), None)
    value = f"{primary} {number(metrics[primary])}, " if primary else ""
    event = "done" if result["status"] == "completed" else result["status"]
    return f"{job_words(folder, event)}: {value}{seconds:.0f} s"


def _written() -> set[str]:
    """Keys that this job's command line names, swept ones included."""
    overrides = OverridesParser.create().parse_overrides(list(HydraConfig.get().overrides.task))
    return {override.key_or_group for override in overrides}


def _signals() -> Callable[[], list[int]]:
    """What tells the signals that came to a job of submitit, which queues it again; they do not matter to others."""
    if SUBMITTED not in os.environ:
        return list
    from rlhf_lab.sweeps.submitted import signals_from_now

    return signals_from_now()


def _given_up(folder: Path, record: dict[str, Any], signals: list[int]) -> bool:
    """Have submitit queue a stopped job again, which ends this process; true when it has done so too often."""
    if not signals:
        return False
    from rlhf_lab.sweeps.submitted import queue_again

    reason = queue_again(signals)
    if reason:
        write_json(folder / "job.json", record | {"error": reason})
    return reason is not None


def _marked(checked: root.Config, recipe: str, folder: Path) -> artifacts.Stage:
    """A job's stage. The tracker of every stage is told the study, that of the last one also what this job swept."""
    study = read_json(folder.parents[1] / "study.json")
    swept = study["jobs"][int(folder.name)]["overrides"]
    swept = {key: swept[key] for key in sorted(swept, key=lambda key: key != study["compare"])}
    group = folder.parents[1].name
    stage = artifacts.plan(dataclasses.replace(checked, tracker=marked(checked.tracker, group=group)), recipe)
    last = dataclasses.replace(stage.config, tracker=marked(stage.config.tracker, swept=swept))
    return dataclasses.replace(stage, config=last)


def _finish(folder: Path, jobs: int) -> int:
    """Write table, plot and report; returns the number of jobs that did not complete."""
    from rlhf_lab.reports.report import write_study_report

    typed_sweep.choose_metrics(folder)
    report = write_study_report(folder)
    print_table(folder)
    console.print(f"table   {folder / 'table.md'}\nplot    {folder / 'plot.svg'}\nreport  {report}", soft_wrap=True)
    records = [read_json(folder / "jobs" / str(i) / "job.json") or {} for i in range(jobs)]
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
