"""Builds the stages of a run that do not wait for each other at the same time, a process each.

A small model keeps one core busy, and many recipes have stages that could use another: reward models of several seeds,
or the policies that `compare_policies` compares. A stage whose evaluation alone reads another one (`late_needs`) begins
to train while that one is being built, and waits for it where it is read: DPO trains beside the reward model.

The processes are forked once everything is imported and checked, so that starting one costs nothing. Each builds its
stage under the stage's lock like any other process; this one hands signals on, shows what they print, and waits.
"""

from __future__ import annotations

import itertools
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rlhf_lab.config import registry
from rlhf_lab.core import ranks
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import LabError
from rlhf_lab.core.machine import PROCESSES, usable_cores
from rlhf_lab.core.signals import die_with_parent, handled
from rlhf_lab.stages.artifacts import Stage
from rlhf_lab.stages.execute import ensure
from rlhf_lab.stages.launch.processes import POLL_SECONDS, STOPPED
from rlhf_lab.stages.reuse import reusable
from rlhf_lab.training.loop import Interrupted


@dataclass
class _Builder:
    """A process that builds a stage, the pipe into which it prints, and the file in which it says why it failed."""

    stage: Stage
    pid: int
    output: int
    error: Path
    text: bytes = b""
    status: int | None = None
    began: float = field(default_factory=time.monotonic)


def build(root: Stage, started: float) -> None:
    """Build a run's missing stages, several at a time, if some of them need not wait for each other.

    Otherwise, and where one process has the machine to itself anyway, nothing happens: `ensure` builds them in turn.

    Raises:
        Interrupted: after a signal; every process has saved what it can go on from.
        LabError: where a stage failed; the others were stopped and have saved.
    """
    missing = [stage for stage in root.upstream() if not reusable(stage, started)]
    slots = _slots(missing)
    if slots < 2 or not _can_overlap(missing):
        return
    builders: list[_Builder] = []
    try:
        with TemporaryDirectory(prefix="rlhf_lab-") as errors, _handed_on(builders) as signals:
            _schedule(missing, builders, signals, slots, started, Path(errors))
    finally:
        for builder in builders:
            if builder.status is None:
                os.kill(builder.pid, signal.SIGKILL)
                os.waitpid(builder.pid, 0)
            os.close(builder.output)
    if signals:
        raise Interrupted(f"stopped by {signal.Signals(signals[0]).name}")


def _slots(missing: Sequence[Stage]) -> int:
    """How many of the stages this machine can build at once."""
    alone = ranks.world() == 1 and os.environ.get(PROCESSES, "1") == "1"
    if not missing or not alone or not hasattr(os, "fork"):
        return 1
    runtime = missing[-1].config.runtime
    one_core_each = all(
        registry.kind_of("model", stage.config.model) == "scratch"
        and registry.kind_of("sharding", stage.config.sharding) == "none"
        and stage.config.runtime.threads <= 1
        for stage in missing
    )
    if ranks.device(runtime.device) != "cpu" or not one_core_each:
        return 1
    return min(len(missing), runtime.stages_at_once or usable_cores())


def _can_overlap(missing: Sequence[Stage]) -> bool:
    """Whether two of the stages may be in the making at once."""
    # Upstream order: a stage that starts without the one just before it can run beside it.
    return any(before.folder not in _required(stage) for before, stage in itertools.pairwise(missing))


def _required(stage: Stage) -> set[Path]:
    """Directories of the stages that have to be complete before this one begins."""
    late = stage.config.algorithm.late_needs
    needs = [need for role, need in stage.needs.items() if isinstance(need, Stage) and role not in late]
    return {before.folder for need in needs for before in need.upstream()}


def _awaited(stage: Stage) -> set[Path]:
    """Directories of the stages that have to be complete before this one ends."""
    late = stage.config.algorithm.late_needs
    return {need.folder for role, need in stage.needs.items() if isinstance(need, Stage) and role in late}


def _schedule(
    missing: Sequence[Stage], builders: list[_Builder], signals: Sequence[int], slots: int, started: float, errors: Path
) -> None:
    """Start each stage as soon as it can begin and a core is free, until all are built or one has ended badly."""
    waiting = list(missing)
    unbuilt = {stage.folder for stage in missing}
    required = {stage.folder: _required(stage) for stage in missing}
    awaited = {stage.folder: _awaited(stage) for stage in missing}
    while unbuilt:
        running = [builder for builder in builders if builder.status is None]
        for stage in list(waiting):
            begun = {builder.stage.folder for builder in builders}
            ready = required[stage.folder].isdisjoint(unbuilt) and awaited[stage.folder] & unbuilt <= begun
            if ready and len(running) < slots and not signals:
                waiting.remove(stage)
                builders.append(_start(stage, started, errors / stage.folder.name))
                running.append(builders[-1])
        _show(running)
        for builder in running:
            if _ended(builder):
                if builder.status:
                    _stop(builders, builder, signals)
                    return
                unbuilt.discard(builder.stage.folder)
                seconds = time.monotonic() - builder.began
                console.print(f"  {builder.stage.recipe} is complete after {seconds:.0f} s", soft_wrap=True)
        if signals and not any(builder.status is None for builder in builders):
            return


def _start(stage: Stage, started: float, error: Path) -> _Builder:
    console.print(f"  {stage.recipe} starts", soft_wrap=True)
    sys.stdout.flush()
    sys.stderr.flush()
    read_end, write_end = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(write_end)
        return _Builder(stage, pid, read_end, error)
    status = 1
    try:
        die_with_parent(signal.SIGTERM)  # it saves, and the same command goes on from there
        if os.getppid() == parent:
            os.close(read_end)
            os.dup2(write_end, 1)
            os.dup2(write_end, 2)
            sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8")
            status = _build_here(stage, started, error)
    finally:
        sys.stdout.flush()
        os._exit(status)


def _build_here(stage: Stage, started: float, error_file: Path) -> int:
    """Build a stage in this process; returns its exit status, and leaves what went wrong in a file."""
    try:
        ensure(stage, started, late_needs_elsewhere=True)
    except (Interrupted, KeyboardInterrupt):
        return STOPPED
    except BaseException as error:
        if not isinstance(error, LabError):
            traceback.print_exc()
        error_file.write_text(str(error) if isinstance(error, LabError) else f"{type(error).__name__}: {error}")
        return 1
    return 0


def _show(running: Sequence[_Builder]) -> None:
    """Print the whole lines that have come, and wait a moment for more."""
    open_ends = {builder.output: builder for builder in running}
    ready, _, _ = select.select(list(open_ends), [], [], POLL_SECONDS)
    for end in ready:
        builder = open_ends[end]
        data = os.read(end, 65536)
        if not data:
            time.sleep(POLL_SECONDS)  # it is about to end
            continue
        *lines, builder.text = (builder.text + data).split(b"\n")
        for line in lines:
            console.print(line.decode(errors="replace"), markup=False, soft_wrap=True)


def _ended(builder: _Builder) -> bool:
    pid, code = os.waitpid(builder.pid, os.WNOHANG)
    if pid:
        builder.status = os.waitstatus_to_exitcode(code)
        _show([builder])  # what it printed last
    return bool(pid)


def _stop(builders: Sequence[_Builder], cause: _Builder, signals: Sequence[int]) -> None:
    """A stage did not come to its end: stop the others, which save, and say why."""
    for builder in builders:
        if builder.status is None:
            os.kill(builder.pid, signal.SIGTERM)
    while running := [builder for builder in builders if builder.status is None]:
        _show(running)
        for builder in running:
            _ended(builder)
    if signals:
        return
    if cause.status == STOPPED:
        raise Interrupted(f"{cause.stage.recipe} was stopped")
    reason = cause.error.read_text() if cause.error.exists() else _ending(cause.status)
    raise LabError(f"{cause.stage.recipe}: {reason}")


def _ending(status: int | None) -> str:
    if status is not None and status < 0:
        return f"its process was ended by {signal.Signals(-status).name}"
    return f"its process ended with exit status {status}"


@contextmanager
def _handed_on(builders: Sequence[_Builder]) -> Iterator[list[int]]:
    """Signals that tell a run to stop go to every process meanwhile; yields those that came."""
    came: list[int] = []
    parent = os.getpid()

    def handle(number: int, _frame: Any) -> None:
        came.append(number)
        if os.getpid() == parent:  # a process that was just forked has the handler still
            for builder in builders:
                if builder.status is None:
                    os.kill(builder.pid, number)

    with handled(handle):
        yield came
