"""Parallel build of independent stages of a run, one process each.

A small model uses one core, and many recipes have stages that could use another: reward models of several seeds, or the
policies of `compare_policies`. A stage whose evaluation alone reads another stage (`late_needs`) starts to train while
that one is being built, and waits before it reads it. For example, DPO trains in parallel with the reward model.

The processes are forked after all imports and checks, so that starting one is cheap. Each builds its stage under the
stage's lock like any other process. The parent forwards signals, prints their output, and waits.
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

from rlhf_lab.config import registry
from rlhf_lab.core import ranks
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import LabError
from rlhf_lab.core.files import read_object
from rlhf_lab.core.machine import PROCESSES, usable_cores
from rlhf_lab.core.progress import Mirror, hide_bars, is_followed, publish_only
from rlhf_lab.core.scratch import scratch_dir
from rlhf_lab.core.signals import STOP_SIGNALS, die_with_parent
from rlhf_lab.stages.artifacts import Stage
from rlhf_lab.stages.execute import ensure, position, stoppable
from rlhf_lab.stages.launch.processes import POLL_SECONDS, STOPPED, StopSignals, describe_exit, stop_signals
from rlhf_lab.stages.reuse import reusable
from rlhf_lab.training.loop import Interrupted, Paused


@dataclass
class _StageProcess:
    """A process that builds a stage.

    Attributes:
        output: read end of the pipe for its output.
        error: file in which it reports why it failed.
        bars: its progress bars, shown by the parent.
        cut_line: output after the last line break.
        status: exit status, below 0 after a signal; None while it runs.
    """

    stage: Stage
    pid: int
    output: int
    error: Path
    bars: Mirror
    cut_line: bytes = b""
    status: int | None = None
    began: float = field(default_factory=time.monotonic)


def build(root: Stage, started: float) -> None:
    """Build a run's missing stages in parallel, if some of them are independent.

    Do nothing if the stages form a chain, or if one stage uses the full machine; `ensure` then builds them one by one.
    Raise Interrupted after a signal, Paused if the monitor paused a stage, and LabError if one failed. All others were
    stopped by then, and have saved.
    """
    missing = [stage for stage in root.upstream() if not reusable(stage, started)]
    slots = _slots(missing)
    if slots < 2 or not _can_overlap(missing):
        return
    builders: list[_StageProcess] = []
    try:
        with TemporaryDirectory(dir=scratch_dir()) as errors, stop_signals() as signals:
            _schedule(root, missing, builders, signals, slots, started, Path(errors))
    finally:
        for builder in builders:
            builder.bars.close()
            if builder.status is None:
                os.kill(builder.pid, signal.SIGKILL)
                os.waitpid(builder.pid, 0)
            os.close(builder.output)
    if signals.received:
        raise Interrupted(f"stopped by {signal.Signals(signals.received[0]).name}")


def _slots(missing: Sequence[Stage]) -> int:
    """Return how many of the stages this machine can build at the same time."""
    single_process = ranks.world() == 1 and os.environ.get(PROCESSES, "1") == "1"
    if not missing or not single_process or not hasattr(os, "fork"):
        return 1
    runtime = missing[-1].config.runtime
    # Only small models on single threads leave cores for other stages.
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
    # In upstream order, a stage that does not require its predecessor can run in parallel with it.
    return any(previous.directory not in _required(stage) for previous, stage in itertools.pairwise(missing))


def _required(stage: Stage) -> set[Path]:
    """Return the directories of the stages that have to be complete before this one starts."""
    late = stage.config.algorithm.inputs.late
    needs = [need for role, need in stage.needs.items() if isinstance(need, Stage) and role not in late]
    return {upstream.directory for need in needs for upstream in need.upstream()}


def _unfinished_upstream(stage: Stage) -> set[Path]:
    """Return the directories of the stages that have to be complete before this one finishes."""
    late = stage.config.algorithm.inputs.late
    return {need.directory for role, need in stage.needs.items() if isinstance(need, Stage) and role in late}


def _schedule(
    root: Stage,
    missing: Sequence[Stage],
    builders: list[_StageProcess],
    signals: StopSignals,
    slots: int,
    started: float,
    errors: Path,
) -> None:
    """Start each stage once its needs are built and a core is free, until all are built or one has failed."""
    waiting = list(missing)
    unbuilt = {stage.directory for stage in missing}
    required = {stage.directory: _required(stage) for stage in missing}
    awaited = {stage.directory: _unfinished_upstream(stage) for stage in missing}
    while unbuilt:
        running = [builder for builder in builders if builder.status is None]
        for stage in list(waiting):
            begun = {builder.stage.directory for builder in builders}
            # Late needs must have started. Otherwise a stage could occupy the last core while it waits for a stage
            # that never gets one.
            needs_begun = awaited[stage.directory] & unbuilt <= begun
            ready = required[stage.directory].isdisjoint(unbuilt) and needs_begun
            if ready and len(running) < slots and not signals.received:
                waiting.remove(stage)
                console.inform(f"  {position(stage, root)} starts")
                with _held_signals():
                    builders.append(_fork_builder(stage, started, errors / stage.directory.name))
                running.append(builders[-1])
        signals.forward(builder.pid for builder in running)
        _print_output(running)
        for builder in running:
            builder.bars.update()
            if _has_finished(builder):
                builder.bars.close()
                if builder.status:
                    _stop_others(builders, builder, signals)
                    return
                unbuilt.discard(builder.stage.directory)
                seconds = time.monotonic() - builder.began
                console.inform(f"  {builder.stage.recipe} is complete after {seconds:.0f} s")
        if signals.received and not any(builder.status is None for builder in builders):
            return


def _fork_builder(stage: Stage, started: float, error: Path) -> _StageProcess:
    """Start a process that builds a stage. Returns only in the parent process. Stop signals must be held."""
    bars = error.with_name(f"{error.name}.bars")
    is_shown = is_followed()
    hide_bars()
    # Otherwise both processes would print what is still buffered at the fork.
    sys.stdout.flush()
    sys.stderr.flush()
    read_end, write_end = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(write_end)
        return _StageProcess(stage, pid, read_end, error, Mirror(bars, stage.recipe))
    status = 1
    try:
        die_with_parent(signal.SIGTERM)  # it saves, so the same command can resume
        if os.getppid() == parent:  # otherwise the parent died before the call above took effect
            os.close(read_end)
            os.dup2(write_end, 1)
            os.dup2(write_end, 2)
            sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8")
            console.print_for_parent()
            if is_shown:
                publish_only(bars)
            status = _build_here(stage, started, error)
    finally:
        sys.stdout.flush()
        os._exit(status)  # skips the parent's clean-up (temporary directory, exit handlers)


def _build_here(stage: Stage, started: float, error_file: Path) -> int:
    """Build a stage in this process and return its exit status; errors are written to a file."""
    try:
        with stoppable():
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
            ensure(stage, started, late_needs_elsewhere=True)
    except (Interrupted, KeyboardInterrupt):
        return STOPPED
    except BaseException as error:
        if not isinstance(error, LabError):
            traceback.print_exc()
        message = str(error) if isinstance(error, LabError) else f"{type(error).__name__}: {error}"
        error_file.write_text(message)
        return 1
    return 0


def _print_output(running: Sequence[_StageProcess]) -> None:
    """Print the complete lines that the builders have written; wait up to POLL_SECONDS for some."""
    builders_by_pipe = {builder.output: builder for builder in running}
    ready, _, _ = select.select(list(builders_by_pipe), [], [], POLL_SECONDS)
    for pipe in ready:
        builder = builders_by_pipe[pipe]
        data = os.read(pipe, 65536)
        if not data:
            # Closed: the process is about to exit. A closed pipe is always ready, so `select` would not wait for it.
            time.sleep(POLL_SECONDS)
            continue
        *lines, builder.cut_line = (builder.cut_line + data).split(b"\n")
        for line in lines:
            console.print(line.decode(errors="replace"))


def _has_finished(builder: _StageProcess) -> bool:
    pid, code = os.waitpid(builder.pid, os.WNOHANG)
    if pid:
        builder.status = os.waitstatus_to_exitcode(code)
        _print_output([builder])
    return bool(pid)


def _stop_others(builders: Sequence[_StageProcess], cause: _StageProcess, signals: StopSignals) -> None:
    """Stop the other builders, which save a checkpoint first, and raise the error of `cause`, unless a signal came."""
    for builder in builders:
        if builder.status is None:
            os.kill(builder.pid, signal.SIGTERM)
    while running := [builder for builder in builders if builder.status is None]:
        signals.forward(builder.pid for builder in running)
        _print_output(running)
        for builder in running:
            _has_finished(builder)
    if signals.received:
        return
    result = read_object(cause.stage.directory / "result.json")
    if cause.status == STOPPED and result.get("status") == "paused":
        raise Paused(f"{cause.stage.recipe}: {result.get('error')}")
    if cause.status == STOPPED:
        raise Interrupted(f"{cause.stage.recipe} was stopped")
    ending = f"its process finished with {describe_exit(cause.status or 0)}"
    reason = cause.error.read_text() if cause.error.exists() else ending
    raise LabError(f"{cause.stage.recipe}: {reason}")


@contextmanager
def _held_signals() -> Iterator[None]:
    """Hold signals that stop a run in this thread, the only one that a forked process has.

    Otherwise the new process would handle one that arrives before it can stop like its parent, which only records it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
