"""`tracker=wandb`: Weights & Biases, online or as offline files under `outputs/wandb/`.

A run's x axis is its own `step`, so rows may be logged in any order. Offline, each attempt at a stage writes its own
file, and a synced file replaces the service's data of the run. A resumed attempt therefore writes all rows, and the
files of earlier attempts are deleted. Online, the tracked run itself continues.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlhf_lab.core.console import console
from rlhf_lab.core.errors import OPTIONAL, LabError, MissingDependency
from rlhf_lab.trackers.settings import Wandb
from rlhf_lab.trackers.tracker import Row, StageOutcome, TrackedStage

AGENT = ("WANDB_SWEEP_ID", "WANDB_RUN_ID", "WANDB_SWEEP_PARAM_PATH")
"""Environment variables by which a sweep agent tells `wandb.init` the run that it waits for."""
ENVIRONMENT = {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}
"""Settings of the client. Its reports of its own errors would use the network even in offline mode."""
LOGIN_SECONDS, UPLOAD_SECONDS = 20.0, 60.0
"""Maximum number of seconds that an unresponsive service delays a stage, at its start and at its end."""
TAG_CHARACTERS = 64
"""Maximum length of a tag; the service rejects longer ones."""


class WandbTracker:
    """Tracker that writes to a W&B run."""

    def __init__(self, run: Any, table: Any):
        self._run = run
        self._table = table
        self.continues = bool(run.resumed)
        # The x axis of all metrics is the stage's own step instead of the number of logged rows.
        run.define_metric("*", step_metric="step")

    def log(self, row: Row) -> None:
        self._run.log(dict(row))

    def finish(self, status: str, outcome: StageOutcome) -> None:
        for name, table in outcome.tables.items():
            self._run.log({name: self._table(columns=table.columns, data=table.rows)})
        final = {f"final/{name}": value for name, value in outcome.final.items()}
        self._run.summary.update({"status": status, **final})
        if status in ("interrupted", "paused"):  # W&B then displays it as preempted instead of failed
            self._run.mark_preempting()
        self._run.finish(exit_code=0 if status == "completed" else 1)


def build(settings: Wandb, subject: TrackedStage) -> WandbTracker:
    """Start a W&B run. Raise the client's error if `mode=online` is not possible."""
    wandb = load()
    mode = os.environ.get("WANDB_MODE", "auto") if settings.mode == "auto" else settings.mode
    if mode == "disabled":
        raise LabError("WANDB_MODE=disabled keeps W&B from recording anything; unset it, or write tracker=files")
    run = None
    # `auto` tries the service once, and then falls back to offline files.
    if mode == "online" or (mode == "auto" and logged_in(wandb)):
        try:
            run = _init_run(wandb, settings, subject, "online")
            console.inform(f"  tracked at {run.url}")
        except wandb.errors.Error:
            if mode == "online":
                raise
            console.inform("  W&B does not answer; tracking offline, for `wandb sync`")
            os.environ["WANDB_MODE"] = "offline"  # later stages then do not wait for the service again
            wandb.teardown()
    if run is None:
        run = _init_run(wandb, settings, subject, "offline" if mode == "auto" else mode)
        _delete_earlier_attempts(Path(run.dir).parent, subject.id)
    return WandbTracker(run, wandb.Table)


def load() -> Any:
    """Return the client's module. Raise MissingDependency if it is not installed."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import wandb
    except ImportError as error:
        raise MissingDependency(*OPTIONAL["wandb"]) from error
    return wandb


def logged_in(wandb: Any) -> bool:
    """Return True if there is a login that can be used without a prompt."""
    try:
        return bool(wandb.login(prompt=False, verify=False))
    except wandb.errors.AuthenticationError:
        return False


@contextmanager
def _sweep_of_the_last_stage(wandb: Any, subject: TrackedStage) -> Iterator[None]:
    """Hide an agent's sweep from the runs of earlier stages, because the agent waits for the run of the last stage."""
    if "WANDB_SWEEP_ID" not in os.environ:
        yield
        return
    wandb.teardown()  # the client reads its environment only once, so it has to start again
    is_last = bool(subject.config.get("swept"))
    hidden = {} if is_last else {name: os.environ.pop(name) for name in AGENT if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


def _init_run(wandb: Any, settings: Wandb, subject: TrackedStage, mode: str) -> Any:
    with _sweep_of_the_last_stage(wandb, subject):
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
            dir=subject.directory,
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
                x_disable_meta=True,  # metadata contain the command line, which is not checked for secrets
            ),
        )


def _delete_earlier_attempts(current: Path, identity: str) -> None:
    """Delete the offline files of earlier attempts at the same run; the file of this attempt has all of their rows."""
    for directory in current.parent.glob(f"offline-run-*-{identity}"):
        if directory.resolve() != current.resolve():
            shutil.rmtree(directory, ignore_errors=True)
