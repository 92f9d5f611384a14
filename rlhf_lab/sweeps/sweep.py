"""Run of a sweep's jobs through a Hydra launcher, with one table at the end whatever happened to the jobs.

The study directory has study.json (all planned jobs, written first) and jobs/<index>/job.json (written by each job).
Therefore `report` works on a partial sweep, and a failed job is a row of the table.
"""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from rich.markup import escape

from rlhf_lab.config import check, command_line, job_configs, registry, root, schema, typed_sweep
from rlhf_lab.config.overrides import forced, level_name, literal
from rlhf_lab.config.smoke import NOTICE
from rlhf_lab.config.study_settings import METRIC_PARTS, ParetoSettings, StudySettings
from rlhf_lab.core import invocation
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import check_outputs, make_dir, read_json, read_object, write_json, write_text
from rlhf_lab.core.machine import GPU_JOBS, PROCESSES, usable_cores, visible_gpus
from rlhf_lab.core.metrics import metric
from rlhf_lab.core.progress import PUBLISHED
from rlhf_lab.core.redaction import redacted, redacted_arguments
from rlhf_lab.core.signals import die_with_parent
from rlhf_lab.stages import artifacts, preflight
from rlhf_lab.studies.look_log import NOT_NEEDED, LookLog
from rlhf_lab.studies.registration import Registration, register
from rlhf_lab.studies.replication import Replication, replication
from rlhf_lab.sweeps.job_lines import BARS, FOLLOWED, JobLines, job_finished
from rlhf_lab.sweeps.job_record import OUTPUT, output_to, plan_tracked, record_job

SWEEP = "RLHF_LAB_SWEEP"
"""Environment variable of joblib's jobs: process id of the sweep, which they must not outlive."""
SUBMITTED = "SUBMITIT_EXECUTOR"
"""Environment variable of jobs that submitit started."""
SUBMITIT = ("submitit_slurm", "submitit_local")
"""Hydra launchers that start jobs through submitit."""
LIMITS = tuple(
    f"++study.{name}=" for name in ("max_seeds", "max_minutes", "trials", "patience", "confirm_seeds", "processes")
)
"""Overrides that change only how far or how fast a study runs, so that it continues in the same directory."""
WITHOUT_EFFECT = ("outputs", "question", "tracker", "artifacts", "checkpoint", "runtime")
"""Settings and sections on which the numbers of a job do not depend, except for `runtime.dtype`."""
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
is set because srun does not inherit the number of CPUs from sbatch.
"""


def run(command: command_line.Command, config_dir: str | None, launch: Callable[[Sequence[str]], int]) -> int:
    """Run every job of a checked command and write the study's table, plot and report. Return the exit status."""
    study = command.study
    if study is None:
        raise ConfigError("--multirun needs a swept value; add e.g. algorithm.beta=0.1,0.3 seed=0,1,2")
    check_fronts(study.fronts)
    check_outputs(Path(command.configs[0].outputs))
    directory = study_dir(command)
    # All jobs are checked before the first one starts, because a problem of the last job would appear hours later.
    stages = preflight.planned(command)
    preflight.check(stages)
    stopping = _stopping_when_decided(directory, study, replication(stages, command.jobs))
    _write_plan(directory, command, study, stages)
    stored = {index for index, stage in enumerate(stages) if stage.result() is not None}
    console.inform(f"[bold]{command.recipe or 'sweep'}[/]: {escape(redacted(study.question))}", markup=True)
    if command.configs[0].size == "smoke":
        console.inform(f"  [yellow]{NOTICE}[/]", markup=True)
    if command.note:
        console.inform(f"  [yellow]{escape(command.note)}[/]", markup=True)
    jobs = f"at most {len(stages)}" if study.until else len(stages)
    console.inform(
        f"  {jobs} jobs, {len(stored)} of them already in the store; directory {directory}\n"
        f"  each job prints to {directory}/jobs/NUMBER/{OUTPUT}, counted from 0"
    )
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra raises errors, and `main` explains them
    try:
        arguments = _hydra_arguments(command, study, directory, config_dir)
        runs_here = _runs_here(command, arguments)
        processes = 1 if runs_here else int(os.environ[PROCESSES])
        # Slurm decides how many jobs run at the same time.
        estimates = study.until is None and _chosen_launcher(command) != "submitit_slurm"
        lines = JobLines(directory, stored, processes, estimates=estimates)
        with stopping, lines.shown(in_process=runs_here):
            _launch_jobs(command, arguments, directory, launch)
    finally:
        failed = write_results(directory, len(stages))
    return 1 if failed else 0


def _stopping_when_decided(
    directory: Path, study: StudySettings, replicated: Replication
) -> AbstractContextManager[None]:
    if study.until is None:
        return nullcontext()
    from rlhf_lab.sweeps import seed_by_seed  # imports the statistics, which single runs do not need

    seed_by_seed.check_prompts(replicated)
    return seed_by_seed.stopping_when_decided(directory, study)


def check_fronts(fronts: Sequence[ParetoSettings]) -> None:
    """Raise ConfigError if a metric of a Pareto front has no direction (higher or lower is better)."""
    for pareto_front in fronts:
        for name in pareto_front.metrics:
            if not metric(name).better:
                raise ConfigError(
                    f"study.fronts: {name} has no direction (higher or lower is better), so no level can dominate "
                    "another; use a metric with a direction, such as accuracy or gold_agreement"
                )


def study_dir(command: command_line.Command) -> Path:
    """Return the directory of a checked command's study.

    What the command line changes adds a hash to its name: shared overrides, and swept values other than seeds. Other
    seeds continue the same study.
    """
    name = _short_name(command)
    changes = [override for override in _shared_overrides(command) if not override.startswith(LIMITS)]
    written = command.study.sweep if command.study and not command.typed else {}
    for key, levels in swept_levels(command).items():
        if key != "seed" and list(written.get(key, [])) != levels:
            changes.append(_sweep_override(key, levels))
    if changes or command.typed:
        digest = sha256("\n".join(sorted(changes)).encode()).hexdigest()
        name += f"-{digest[:6]}"
    return Path(command.configs[0].outputs) / "studies" / name


def _short_name(command: command_line.Command) -> str:
    return (command.recipe or "sweep").removeprefix("study/").replace("/", "-")


def registration_name(command: command_line.Command) -> str:
    """Return the name under which the claims of a command are registered.

    It depends on the recipe, the swept keys and the overrides that change what the jobs compute. Claims, metrics, seeds
    and the rule by which the study stops are not part of it: a study with other claims about the same jobs has to find
    out which seeds were seen.
    """
    swept = [key for key in swept_levels(command) if key != "seed"]
    settings = [override for override in _shared_overrides(command) if not _describes_study(override)]
    digest = sha256("\n".join([*sorted(swept), *sorted(settings)]).encode()).hexdigest()
    return f"{_short_name(command)}-{digest[:10]}"


def _describes_study(override: str) -> bool:
    """Return True for an override that does not change what a job with a given seed computes."""
    key = override.lstrip("+").partition("=")[0]
    if key.partition(".")[0] in WITHOUT_EFFECT:
        return key != "runtime.dtype"
    # The quick size changes settings of the jobs, and it drops claims. Arms are settings of the jobs.
    return key == "seed" or (key.startswith("study.") and not key.startswith(("study.size", "study.arm")))


def _shared_overrides(command: command_line.Command) -> list[str]:
    return [override for override in command.overrides if not override.startswith(("+recipe=", "hydra"))]


def _launch_jobs(
    command: command_line.Command, arguments: list[str], directory: Path, launch: Callable[[Sequence[str]], int]
) -> None:
    """Run the jobs through their launcher, and write job.json for a submitted job that finished without writing it."""
    invocation.start_building()
    launcher = _chosen_launcher(command) or ""
    following: AbstractContextManager[list[str | None]] = nullcontext([])
    if launcher in SUBMITIT:
        from rlhf_lab.sweeps.submitted import followed

        text = f"  jobs are submitted to {launcher}; its messages are in {directory}/.submitit"
        console.inform(text)
        following = followed(launcher)
    try:
        with following as ends:
            launch(arguments)
    finally:
        written = directory / "multirun.yaml"
        if written.is_file():  # the settings that Hydra writes for a sweep may have secrets; nothing reads them
            write_text(written, redacted(written.read_text(encoding="utf-8")))
    for index, problem in enumerate(ends):
        path = directory / "jobs" / str(index) / "job.json"
        if problem is not None and not path.exists():
            make_dir(path.parent)
            write_json(path, {"status": "failed", "run": None, "error": problem})


def swept_levels(command: command_line.Command) -> dict[str, list[Any]]:
    levels: dict[str, list[Any]] = {}
    for job in command.jobs:
        for key, value in job.items():
            if value not in levels.setdefault(key, []):
                levels[key].append(value)
    return levels


def _sweep_override(key: str, levels: Sequence[Any]) -> str:
    return f"{forced(key)}={','.join(map(literal, levels))}"


def _write_plan(
    directory: Path, command: command_line.Command, study: StudySettings, stages: Sequence[artifacts.Stage]
) -> None:
    """Write study.json, and remove the records of an earlier sweep's jobs."""
    names_metrics = any(override.lstrip("+").startswith("study.metrics") for override in command.overrides)
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
        "metrics_from": typed_sweep.FROM_RESULTS if command.typed and not names_metrics else typed_sweep.WRITTEN,
        "curves": study.curves,
        "by": study.by,
        "labels": study.labels,
        "replication": replication(stages, command.jobs).to_dict(),
        "until": study.until,
        "size": "smoke" if command.configs[0].size == "smoke" else study.size,
        "predicts": [schema.to_plain_values(claim) for claim in study.predicts],
        "seen_seeds": study.seen_seeds,
        "jobs": [
            {
                "index": index,
                "overrides": redacted(job),
                "run": str(stage.directory.resolve()),
                "seed": stage.config.seed,
                "settings": stage.settings_but_seeds,
                "name": stage.recipe,
                "question": redacted(stage.config.question),
            }
            for index, (job, stage) in enumerate(zip(command.jobs, stages, strict=True))
        ],
    }
    if study.arms:
        plan["arms"] = redacted(study.arms)
    for name in METRIC_PARTS:
        if parts := getattr(study, name):
            plan[name] = [schema.to_plain_values(part) for part in parts]
    registration = register(directory, registration_name(command), plan)
    plan["registration"] = registration.to_dict()
    if study.until:
        plan["looks"] = continued_log(directory, registration, swept_levels(command)["seed"]).to_dict()
    make_dir(directory)
    for index in range(len(command.jobs)):
        (directory / "jobs" / str(index) / "job.json").unlink(missing_ok=True)
    write_json(directory / "study.json", plan)


def continued_log(directory: Path, registration: Registration, seeds: Sequence[int]) -> LookLog:
    """Return the log with which a study starts: the looks of an earlier run that had some of its claims, else none.

    Raises:
        ConfigError: a claim that was looked at would start again with other seeds.
    """
    earlier = read_object(directory / "study.json")
    if "looks" not in earlier or "registration" not in earlier:
        return LookLog(tuple(seeds))
    log = LookLog.from_dict(earlier["looks"])
    before = [entry.hash for entry in Registration.from_dict(earlier["registration"]).claims]
    # Claims may have moved in the list: index of a claim before → its index now.
    moved = {before.index(entry.hash): i for i, entry in enumerate(registration.claims) if entry.hash in before}
    if not (moved and log.looks):
        return LookLog(tuple(seeds))
    looked = log.seeds[: log.looks[-1].seeds]
    if tuple(seeds[: len(looked)]) != looked:
        raise ConfigError(
            f"{directory}/study.json: its claims were looked at with seeds {', '.join(map(str, looked))}, and a test "
            "that starts again with other seeds would be wrong too often; give these seeds first, and more of them "
            "with study.max_seeds=N. Claims that are new count only seeds that were not seen"
        )
    looks = []
    for look in log.looks:
        decided = {moved[claim]: verdict for claim, verdict in look.decided.items() if claim in moved}
        looks.append(dataclasses.replace(look, decided=decided))
    # Levels of claims that were added get the seeds after the last look, also if every earlier claim is decided.
    added = [entry.meaning for entry in registration.claims if entry.hash not in before]
    levels = dict.fromkeys([*looks[-1].levels, *(meaning[side] for meaning in added for side in ("level", "versus"))])
    looks[-1] = dataclasses.replace(looks[-1], levels=tuple(levels))
    return LookLog(tuple(seeds), tuple(looks))


def _hydra_arguments(
    command: command_line.Command, study: StudySettings, directory: Path, config_dir: str | None
) -> list[str]:
    """Return Hydra's command line.

    Seeds vary fastest, so parallel jobs rarely wait for the same upstream stage. A study that stops when its claims are
    decided has batches of all jobs of a seed instead.
    """
    flags = ["--multirun", *([f"--config-dir={config_dir}"] if config_dir else [])]
    arguments = list(command.overrides)
    arguments += [_sweep_override(key, levels) for key, levels in swept_levels(command).items()]
    if study.until:
        jobs_per_seed = len(command.jobs) // len(swept_levels(command)["seed"])
        arguments.append(f"hydra.sweeper.max_batch_size={jobs_per_seed}")
    arguments += [f"hydra.sweep.dir={directory}", "hydra.sweep.subdir=jobs/${hydra.job.num}"]
    launcher = _chosen_launcher(command)
    processes = min(study.processes, usable_cores(), len(command.jobs))
    if launcher == "submitit_slurm":
        processes = 1  # a Slurm job does not share its cores
    if launcher is None and processes > 1 and find_spec("hydra_plugins.hydra_joblib_launcher"):
        launcher = "joblib"
        arguments.append("hydra/launcher=joblib")
    os.environ[PROCESSES] = str(processes)
    if launcher == "joblib":
        os.environ[SWEEP] = str(os.getpid())
    settings = [setting.format(processes=processes) for setting in LAUNCHERS.get(launcher or "", ())]
    return [*flags, *settings, *arguments]  # argparse refuses flags between settings


def _runs_here(command: command_line.Command, arguments: Sequence[str]) -> bool:
    """Return True if the jobs run in this process, one after another."""
    if "hydra/launcher=joblib" in arguments:  # with a single process, joblib calls its jobs directly
        return os.environ[PROCESSES] == "1"
    return _chosen_launcher(command) in (None, "basic")


def _chosen_launcher(command: command_line.Command) -> str | None:
    prefix = "hydra/launcher="
    chosen = [override.removeprefix(prefix) for override in command.overrides if override.startswith(prefix)]
    return chosen[0] if chosen else None


def run_job(
    values: dict[str, Any], run_stage: Callable[[artifacts.Stage], tuple[int, dict[str, Any]]]
) -> dict[str, Any]:
    """Run the stage of one job and write job.json, even if it fails."""
    if os.environ.get(PROCESSES, "1") != "1":
        die_with_parent(signal.SIGTERM)  # a worker must not outlive the sweep that started it
        if _has_outlived_sweep():  # the sweep ended while the worker was starting
            os._exit(1)
    directory = Path(HydraConfig.get().runtime.output_dir)
    make_dir(directory)
    if not _is_needed(directory):
        skipped = {"status": NOT_NEEDED, "run": None, "error": None}
        write_json(directory / "job.json", skipped)
        return skipped
    received_signals: Callable[[], list[int]] = list
    if SUBMITTED in os.environ:  # some signals requeue a job that submitit started
        from rlhf_lab.sweeps.submitted import signals_from_now

        received_signals = signals_from_now()
    if FOLLOWED in os.environ:
        os.environ[PUBLISHED] = str(directory / BARS)

    def work(record: dict[str, Any]) -> None:
        task = OverridesParser.create().parse_overrides(list(HydraConfig.get().overrides.task))
        job_values = job_configs.job_values(values, {override.key_or_group for override in task})
        stage = _plan_job(check.check(job_values), directory)
        record["run"] = str(stage.directory.resolve())
        if SWEEP in os.environ and os.environ.get(PROCESSES, "1") != "1":  # beside other jobs on this machine
            _take_gpu(stage.config, int(directory.name))
        with output_to(directory / OUTPUT):
            _, result = run_stage(stage)
        record |= {"status": result["status"], "error": result.get("error")}

    try:
        record = record_job(directory, work)
    finally:
        (directory / BARS).unlink(missing_ok=True)
        job_finished()
        if _has_outlived_sweep():  # a joblib worker would wait for its next job
            os._exit(1)
    if record["status"] == "interrupted" and not _requeue_refused(directory, record, received_signals()):
        raise KeyboardInterrupt  # a stop applies to the entire sweep, not to one job
    return record


def _is_needed(directory: Path) -> bool:
    """Return True if an undecided claim compares the level of a job, or if the study has a fixed list of seeds."""
    plan = read_json(directory.parents[1] / "study.json")
    if "looks" not in plan:
        return True
    overrides = plan["jobs"][int(directory.name)]["overrides"]
    look = LookLog.from_dict(plan["looks"]).before(overrides["seed"])
    return look is None or level_name(overrides[plan["compare"]]) in look.levels


def _has_outlived_sweep() -> bool:
    """Return True in a joblib worker whose sweep has finished; its parent is then another process."""
    sweep = os.environ.get(SWEEP)
    # No sweep at all, a worker of a running sweep, or the sweep's own process.
    return sweep not in (None, str(os.getppid()), str(os.getpid()))


def _take_gpu(config: root.Config, job: int) -> None:
    """Give this worker one of several GPUs, by the number of its first job, so that parallel jobs use different ones.

    A worker keeps its GPU for all its jobs, because CUDA reads the variable only once. A job that is itself split
    between processes keeps all GPUs.
    """
    if GPU_JOBS in os.environ:
        return
    gpus = visible_gpus(os.environ)
    is_split = registry.kind_of("sharding", config.sharding) != "none"
    jobs = int(os.environ.get(PROCESSES, "1"))
    if not is_split and len(gpus) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[job % len(gpus)]
        jobs = -(-jobs // len(gpus))  # rounded up
    os.environ[GPU_JOBS] = str(jobs)


def _requeue_refused(directory: Path, record: dict[str, Any], signals: list[int]) -> bool:
    """Let submitit requeue a stopped job, which exits this process. Return True if it was requeued too often."""
    if not signals:
        return False
    from rlhf_lab.sweeps.submitted import queue_again

    reason = queue_again(signals)
    if reason:
        write_json(directory / "job.json", record | {"error": reason})
    return reason is not None


def _plan_job(checked: root.Config, directory: Path) -> artifacts.Stage:
    study_dir = directory.parents[1]
    study = read_json(study_dir / "study.json")
    job = study["jobs"][int(directory.name)]
    # The compared setting comes first in the tracker's list of swept values.
    swept = dict(sorted(job["overrides"].items(), key=lambda item: item[0] != study["compare"]))
    return plan_tracked(checked.replace(question=job["question"]), job["name"], group=study_dir.name, swept=swept)


def write_results(directory: Path, jobs: int) -> int:
    from rlhf_lab.reports.report import write_study_report
    from rlhf_lab.studies.frame import read_study

    typed_sweep.choose_metrics(directory)
    console.inform("  writing the tables and the report")
    report = write_study_report(directory)
    study = read_study(directory)
    if study.completed.empty:
        console.print(f"no job is complete, so there is no table; report {report}")
    else:
        print_table(directory)
        console.print(f"table   {directory / 'table.md'}\nplot    {directory / 'plot.svg'}\nreport  {report}")
    if study.log is not None:
        return len(study.incomplete)  # without the jobs that it did not need
    records = [read_object(directory / "jobs" / str(index) / "job.json") for index in range(jobs)]
    return sum(record.get("status") != "completed" for record in records)


def print_table(directory: Path) -> None:
    from rlhf_lab.studies.finding import finding_blocks
    from rlhf_lab.studies.frame import is_study, read_study

    if is_study(directory):
        for block in finding_blocks(read_study(directory)):
            console.print(block)
