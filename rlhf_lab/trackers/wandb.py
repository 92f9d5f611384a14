"""`tracker=wandb`: Weights & Biases, online or as offline files under `outputs/wandb/`.

A run's x axis is its own `step`, so rows need not come in order. Offline, each attempt at a stage writes a file of its
own, and the service replaces what it has of a run by what it is sent: an attempt that resumes therefore writes all
rows, and the files of attempts before it are deleted. Online, the tracked run itself goes on.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlhf_lab.core.console import console
from rlhf_lab.core.errors import OPTIONAL, MissingDependency
from rlhf_lab.trackers.settings import Wandb
from rlhf_lab.trackers.tracker import Outcome, Row, Subject

AGENT = ("WANDB_SWEEP_ID", "WANDB_RUN_ID", "WANDB_SWEEP_PARAM_PATH")
"""Environment variables with which a sweep agent tells `wandb.init` which run it waits for."""
ENVIRONMENT = {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}
"""The client's reports of its own errors are network calls, in offline mode too."""
LOGIN_SECONDS, UPLOAD_SECONDS = 20.0, 60.0
"""How long a service that does not answer may hold up a stage, at its begin and at its end."""
TAG_CHARACTERS = 64
"""The service refuses longer tags."""


class WandbTracker:
    """A W&B run."""

    def __init__(self, run: Any, table: Any):
        self._run = run
        self._table = table
        self.continues = bool(run.resumed)
        run.define_metric("*", step_metric="step")

    def log(self, row: Row) -> None:
        self._run.log(dict(row))

    def finish(self, status: str, outcome: Outcome) -> None:
        for name, table in outcome.tables.items():
            self._run.log({name: self._table(columns=table.columns, data=table.rows)})
        final = {f"final/{name}": value for name, value in outcome.final.items()}
        self._run.summary.update({"status": status, **final})
        if status in ("interrupted", "paused"):  # W&B then shows it as preempted, not as failed
            self._run.mark_preempting()
        self._run.finish(exit_code=0 if status == "completed" else 1)


def build(settings: Wandb, subject: Subject) -> WandbTracker:
    """Start a W&B run. Raises what the client raises when `mode=online` is not to be had."""
    wandb = load()
    mode = os.environ.get("WANDB_MODE", "auto") if settings.mode == "auto" else settings.mode
    run = None
    if mode == "online" or (mode == "auto" and logged_in(wandb)):
        try:
            run = _init_run(wandb, settings, subject, "online")
            console.print(f"  tracked at {run.url}", soft_wrap=True)
        except wandb.errors.Error:
            if mode == "online":
                raise
            console.print("  W&B does not answer: tracked offline, for `wandb sync`")
            os.environ["WANDB_MODE"] = "offline"  # the stages that follow need not wait for it
            wandb.teardown()
    if run is None:
        run = _init_run(wandb, settings, subject, "offline" if mode == "auto" else mode)
        _delete_earlier_attempts(Path(run.dir).parent, subject.id)
    return WandbTracker(run, wandb.Table)


def load() -> Any:
    """The client's module. Raises MissingDependency when it is not installed."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import wandb
    except ImportError as error:
        raise MissingDependency(*OPTIONAL["wandb"]) from error
    return wandb


def logged_in(wandb: Any) -> bool:
    """Whether there is a login that can be used without asking."""
    try:
        return bool(wandb.login(prompt=False, verify=False))
    except wandb.errors.AuthenticationError:
        return False


def _init_run(wandb: Any, settings: Wandb, subject: Subject, mode: str) -> Any:
    with _sweep_of_the_last_stage(wandb, subject):
        return _init(wandb, settings, subject, mode)


@contextmanager
def _sweep_of_the_last_stage(wandb: Any, subject: Subject) -> Iterator[None]:
    """Hide an agent's sweep from the run of an earlier stage: the agent waits for the run of the last one."""
    if "WANDB_SWEEP_ID" not in os.environ:
        yield
        return
    wandb.teardown()  # the client reads its environment once
    is_last = bool(subject.config.get("swept"))
    hidden = {} if is_last else {name: os.environ.pop(name) for name in AGENT if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


def _init(wandb: Any, settings: Wandb, subject: Subject, mode: str) -> Any:
    return wandb.init(
        project=settings.project,
        entity=settings.entity or None,
        group=subject.group,
        job_type=subject.recipe,
        id=subject.id,
        name=subject.name,
        tags=[tag[:TAG_CHARACTERS] for tag in subject.tags],
        notes=subject.question,
        config=subject.config,
        dir=subject.folder,
        mode=mode,
        resume="allow" if mode == "online" else None,
        reinit="create_new",
        settings=wandb.Settings(
            console="off",
            silent=True,
            init_timeout=LOGIN_SECONDS,
            finish_timeout=UPLOAD_SECONDS,
            disable_code=True,
            disable_git=True,
            disable_job_creation=True,
            x_disable_meta=True,  # it holds the command line, which nobody has looked through for secrets
        ),
    )


def _delete_earlier_attempts(current: Path, identity: str) -> None:
    """Delete the offline files of attempts at the same run; this attempt's has all of their rows."""
    for folder in current.parent.glob(f"offline-run-*-{identity}"):
        if folder.resolve() != current.resolve():
            shutil.rmtree(folder, ignore_errors=True)
