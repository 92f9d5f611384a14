"""Start of the processes on this machine that train one stage together.

The parent composes, checks and plans, holds the stage's lock, and reports. The processes build the stage
(`rlhf_lab.stages.worker`). Signals to the parent are forwarded to each of them: they save after their step. They die
with the parent. torchrun is not used here, because it kills processes 30 seconds after a signal, and saving a large
checkpoint takes longer. torchrun can start the full command instead (see launchers/README.md).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from rlhf_lab.config import registry, root
from rlhf_lab.core import ranks
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import OPTIONAL, ConfigError, DeviceMemoryError, LabError, MissingDependency
from rlhf_lab.core.files import make_dir, read_json, read_object, write_json
from rlhf_lab.core.machine import usable_cores
from rlhf_lab.core.progress import hide_bars
from rlhf_lab.core.scratch import scratch_dir
from rlhf_lab.core.signals import handled
from rlhf_lab.stages.artifacts import Stage
from rlhf_lab.training.loop import Interrupted, Paused

POLL_SECONDS = 0.05
END_SECONDS = {"failed": 10.0, "ended": 120.0}
"""Seconds that other processes may still run after one has failed, or has finished in another way."""
STOPPED = 75
"""Exit status of a process that was told to stop and has saved."""


def run_side_by_side(checked: root.Config, devices: int) -> int:
    """Return the number of processes that train the stage together: those of a launcher, else those of a machine with
    `devices` GPUs; 1 if the work is not split."""
    settings = checked.sharding
    if registry.kind_of("sharding", settings) == "none" or not checked.algorithm.resources.distributed:
        return 1
    launched = ranks.launched()
    return launched if launched > 1 else settings.processes or max(devices, 1)


def requested_processes(checked: root.Config) -> int:
    """Return the number of processes to start for the stage. Raise ConfigError if the machine has too few GPUs."""
    on_gpu = checked.runtime.device != "cpu" and torch.cuda.is_available()
    devices = torch.cuda.device_count() if on_gpu else 0
    count = run_side_by_side(checked, devices)
    if devices and count > devices:
        raise ConfigError(
            f"sharding.processes={count} needs as many GPUs, and this machine has {devices}; "
            f"use sharding.processes={devices}, or runtime.device=cpu"
        )
    return count


def check_launch(checked: root.Config) -> None:
    """Raise ConfigError if the device does not exist, or if an external launcher started a different number of
    processes than configured. Raise MissingDependency if DeepSpeed is configured but not installed."""
    kind = registry.kind_of("sharding", checked.sharding)
    if checked.runtime.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "runtime.device=cuda: this PyTorch finds no GPU (python -m rlhf_lab doctor shows details); use "
            "runtime.device=cpu, or runtime.device=auto to use what is available"
        )
    if kind == "zero" and find_spec("deepspeed") is None:
        raise MissingDependency(*OPTIONAL["deepspeed"])
    launched = ranks.launched()
    if launched == 1:
        return
    if kind == "none":
        raise ConfigError(
            f"a launcher started {launched} processes, but sharding=none uses one; use sharding=ddp, fsdp_grad_op, "
            "fsdp_full, zero1, zero2 or zero3, or start one process"
        )
    local = int(os.environ.get("LOCAL_WORLD_SIZE", launched))
    if checked.sharding.processes not in (0, local):
        raise ConfigError(
            f"sharding.processes={checked.sharding.processes}, but the launcher started {local} processes on this "
            f"machine; remove the setting, or use sharding.processes={local}"
        )
    if ranks.device(checked.runtime.device) == "cuda" and ranks.local_rank() >= torch.cuda.device_count():
        raise ConfigError(
            f"the launcher started {local} processes here, and the machine has {torch.cuda.device_count()} GPUs; start "
            "one process for each, or use runtime.device=cpu"
        )


def train_together(stage: Stage, count: int, *, discard: bool) -> dict[str, Any]:
    """Build a stage with `count` processes and return the content of result.json.

    If one of them runs out of memory and may use smaller micro-batches, all restart from the last checkpoint.
    """
    micro_batch_tokens: int | None = None
    while True:
        try:
            return _train_together(stage, count, discard=discard, micro_batch_tokens=micro_batch_tokens)
        except DeviceMemoryError as error:
            if error.micro_batch_tokens is None:
                raise
            micro_batch_tokens = error.micro_batch_tokens
        console.inform(
            f"  out of memory: restarting from the last checkpoint with micro-batches of {micro_batch_tokens} tokens"
        )
        discard = False  # keep the progress so far


def _train_together(stage: Stage, count: int, *, discard: bool, micro_batch_tokens: int | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=scratch_dir()) as directory:
        order_file = Path(directory) / "stage.json"
        order = {
            "recipe": stage.recipe,
            "values": root.to_values(stage.config),
            "folder": str(stage.directory),
            "discard": discard,
            "micro_batch_tokens": micro_batch_tokens,
        }
        write_json(order_file, order)
        ended_before = _when_ended(stage)
        workers: list[subprocess.Popen[bytes]] = []
        hide_bars()  # the main worker draws on the same terminal
        try:
            with stop_signals() as signals:
                for rank in range(count):
                    workers.append(_start_worker(order_file, rank, count))
                failed, hung = _wait_for_all(workers, signals)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        codes = [worker.wait() for worker in workers]
        cause = _cause(failed, order_file.parent) if failed else hung
        # A failure may come before the main process replaces the result of an earlier attempt by its own.
        is_earlier = cause is not None and ended_before is not None and ended_before == _when_ended(stage)
        return _outcome(stage, order_file.parent, codes, cause, signals.received, is_earlier=is_earlier)


def _start_worker(order_file: Path, rank: int, count: int) -> subprocess.Popen[bytes]:
    """Start one of `count` workers, with the environment that torchrun would give it."""
    launch = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    environment = {**os.environ, **{name: str(value) for name, value in launch.items()}}
    # The workers find each other through this file, so no free port is needed.
    environment[ranks.MEETING] = f"file://{order_file.parent / 'meeting'}"
    if sys.platform == "linux":
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all workers are on this machine
    command = [sys.executable, "-m", "rlhf_lab.stages.worker", str(order_file), str(os.getpid())]
    # A separate session, so that Ctrl-C reaches only the parent, which forwards it once.
    return subprocess.Popen(command, env=environment, start_new_session=True, stdout=console.diverted_to)


@dataclass
class StopSignals:
    """Signals that stop a run, in order of arrival, and how many of them each process (by its id) was sent.

    A handler that forwarded them at once would miss a process that is being started.
    """

    received: list[int] = field(default_factory=list)
    sent: Counter[int] = field(default_factory=Counter)

    def forward(self, pids: Iterable[int]) -> None:
        """Send each of the running processes the signals that it was not sent before."""
        received = tuple(self.received)
        for pid in pids:
            for number in received[self.sent[pid] :]:
                os.kill(pid, number)
            self.sent[pid] = len(received)


@contextmanager
def stop_signals() -> Iterator[StopSignals]:
    """Record the signals that stop a run in this block, which forwards them to its processes."""
    signals = StopSignals()
    with handled(lambda number, _frame: signals.received.append(number)):
        yield signals


def _wait_for_all(
    workers: Sequence[subprocess.Popen[bytes]], signals: StopSignals
) -> tuple[dict[int, int], int | None]:
    """Wait for all workers. Return rank → exit status of those that failed, and a rank that hung or None.

    Once one worker has finished, the others may wait for it forever in a collective operation, so they are killed after
    END_SECONDS. A second Ctrl-C kills them immediately.
    """
    failed: dict[int, int] = {}
    deadline = float("inf")
    while True:
        running = [worker for worker in workers if worker.poll() is None]
        signals.forward(worker.pid for worker in running)
        finished = {rank: code for rank, worker in enumerate(workers) if (code := worker.poll()) is not None}
        # Statuses do not change once a worker has finished, so those recorded earlier are simply repeated.
        failed |= {rank: code for rank, code in finished.items() if code not in (0, STOPPED)}
        if not running:
            return failed, None
        limit = END_SECONDS["failed" if failed else "ended"] if finished else float("inf")
        deadline = min(deadline, time.monotonic() + limit)
        if time.monotonic() > deadline or signals.received.count(signal.SIGINT) > 1:
            for worker in running:
                worker.kill()
            return failed, workers.index(running[0])
        time.sleep(POLL_SECONDS)


def _cause(failed: dict[int, int], reports: Path) -> int:
    """Return the rank whose failure made the others fail.

    A process killed by a signal comes first: its peers report a lost connection, and it writes no report. SIGABRT does
    not count, because a process may abort when it loses a peer. Otherwise it is the process that failed earliest by its
    own report (`error_RANK.json`). The order in which exits are observed is no evidence.
    """
    for rank, code in failed.items():
        if code < 0 and -code != signal.SIGABRT:
            return rank
    return min(failed, key=lambda rank: read_object(reports / f"error_{rank}.json").get("failed_at", float("inf")))


def _when_ended(stage: Stage) -> int | None:
    """Return when the end of an attempt was written to result.json, in nanoseconds; None if no end is there."""
    path = stage.directory / "result.json"
    has_ended = read_object(path).get("status", "running") != "running"
    return path.stat().st_mtime_ns if has_ended else None


def _outcome(
    stage: Stage,
    directory: Path,
    codes: Sequence[int],
    cause: int | None,
    signals: Sequence[int],
    *,
    is_earlier: bool = False,
) -> dict[str, Any]:
    """Return the stage's result. Raise Interrupted, Paused or the error of the process that failed first.

    Args:
        is_earlier: True if the processes failed and left result.json as it was; it stays as it is.
    """
    result: dict[str, Any] = {} if is_earlier else read_object(stage.directory / "result.json")
    if result.get("status") == "completed":
        if signals:
            raise Interrupted(f"stopped by {signal.Signals(signals[0]).name}; {stage.recipe} is complete")
        return result
    if result.get("status") == "paused":
        raise Paused(str(result["error"]))
    if result.get("status") == "interrupted":
        raise Interrupted(str(result["error"]))
    if signals:
        error = f"stopped by {signal.Signals(signals[0]).name}"
        if not is_earlier:
            _write_status(stage, result, "interrupted", error)
        raise Interrupted(error)
    rank = cause or 0
    report = read_json(directory / f"error_{rank}.json")
    if report:
        # Expected errors have no traceback, and their message is enough.
        console.print(report["traceback"], end="")
        error = report["error"]
        if report["micro_batch_tokens"]:
            raise DeviceMemoryError(f"{stage.recipe}: {error}", report["micro_batch_tokens"])
    else:
        error = f"process {rank} of {len(codes)} finished with {describe_exit(codes[rank])}"
    if not is_earlier:
        _write_status(stage, result, "failed", error)
    raise LabError(f"{stage.recipe}: {error}")


def _write_status(stage: Stage, result: dict[str, Any], status: str, error: str) -> None:
    """Write the end of a stage to result.json. Rank 0 may have had no time, or may only know that a peer left."""
    make_dir(stage.directory)  # the workers may have failed before they created it
    write_json(stage.directory / "result.json", {**result, "status": status, "error": error})


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    killed = " (out of memory?)" if -code == signal.SIGKILL else ""
    return f"signal {signal.Signals(-code).name}{killed}"


def set_threads(checked: root.Config, processes: int) -> None:
    """Set this process's CPU threads: `runtime.threads`, or the cores divided by `processes`."""
    if checked.runtime.threads:
        threads = checked.runtime.threads
    elif registry.kind_of("model", checked.model) == "scratch":
        threads = 1  # a small model is slower with two; see `runtime.threads`
    else:
        threads = max(1, usable_cores() // processes)
    torch.set_num_threads(threads)
