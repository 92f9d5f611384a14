"""Starts the processes that train one stage together, on this machine, and waits for them.

The parent composes, checks, plans, holds the stage's lock and reports; the processes build the stage
(`rlhf_lab.stages.worker`). A signal to the parent is forwarded to each of them: they save after their step. They die
with the parent. torchrun is not used for this, because it kills processes 30 seconds after a signal, and saving a large
checkpoint takes longer; it can start the whole command instead (see launchers/README.md).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from rich.markup import escape

from rlhf_lab.config import registry, root
from rlhf_lab.core import ranks
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import OPTIONAL, ConfigError, DeviceMemoryError, LabError, MissingDependency
from rlhf_lab.core.files import make_folder, read_json, write_json
from rlhf_lab.core.scratch import scratch_dir
from rlhf_lab.core.signals import handled
from rlhf_lab.stages.artifacts import Stage
from rlhf_lab.training.loop import Interrupted, Paused

POLL_SECONDS = 0.05
END_SECONDS = {"failed": 10.0, "ended": 120.0}
"""How long the other processes may take once one has failed, or has ended in another way."""
STOPPED = 75
"""Exit status of a process that was told to stop and has saved."""


def together(checked: root.Config, devices: int) -> int:
    """Processes that train the stage together: those that a launcher started, else those of a machine with `devices`
    GPUs; 1 where the work is not shared."""
    settings = checked.sharding
    if registry.kind_of("sharding", settings) == "none" or not checked.algorithm.shares_work:
        return 1
    launched = ranks.launched()
    return launched if launched > 1 else settings.processes or max(devices, 1)


def wanted(checked: root.Config) -> int:
    """Processes that the lab starts for the stage. Raises ConfigError where what was asked cannot be had."""
    on_gpu = checked.runtime.device != "cpu" and torch.cuda.is_available()
    devices = torch.cuda.device_count() if on_gpu else 0
    count = together(checked, devices)
    if devices and count > devices:
        raise ConfigError(
            f"sharding.processes={count} needs as many GPUs, and this machine has {devices}; "
            f"use sharding.processes={devices}, or runtime.device=cpu"
        )
    return count


def check_launch(checked: root.Config) -> None:
    """Raises ConfigError where there is no such device, or an outside launcher started other processes than the config
    asks for, and MissingDependency where DeepSpeed is asked for and not installed."""
    kind = registry.kind_of("sharding", checked.sharding)
    if checked.runtime.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "runtime.device=cuda: this PyTorch finds no GPU (python -m rlhf_lab doctor says more); use "
            "runtime.device=cpu, or auto, which takes what is there"
        )
    if kind == "zero" and find_spec("deepspeed") is None:
        raise MissingDependency(*OPTIONAL["deepspeed"])
    launched = ranks.launched()
    if launched == 1:
        return
    if kind == "none":
        raise ConfigError(
            f"a launcher started {launched} processes, and sharding=none uses one; choose sharding=ddp, fsdp_grad_op, "
            "fsdp_full, zero1, zero2 or zero3, or start one process"
        )
    local = int(os.environ.get("LOCAL_WORLD_SIZE", launched))
    if checked.sharding.processes not in (0, local):
        raise ConfigError(
            f"sharding.processes={checked.sharding.processes}, and the launcher started {local} processes on this "
            f"machine; leave it out, or write sharding.processes={local}"
        )


def train_together(stage: Stage, count: int, *, discard: bool) -> dict[str, Any]:
    """Build a stage with `count` processes. Returns what result.json holds.

    When one runs out of memory and may take smaller micro-batches, all are started again and go on from the last
    checkpoint.
    """
    micro_batch_tokens: int | None = None
    while True:
        try:
            return _train_together(stage, count, discard=discard, micro_batch_tokens=micro_batch_tokens)
        except DeviceMemoryError as error:
            if error.micro_batch_tokens is None:
                raise
            micro_batch_tokens = error.micro_batch_tokens
        console.print(
            f"  out of memory: again from the last checkpoint, in micro-batches of {micro_batch_tokens} tokens"
        )
        discard = False  # what has been trained is kept


def _train_together(stage: Stage, count: int, *, discard: bool, micro_batch_tokens: int | None) -> dict[str, Any]:
    """Start `count` processes that build a stage, and wait for them."""
    with tempfile.TemporaryDirectory(dir=scratch_dir()) as folder:
        order_file = Path(folder) / "stage.json"
        order = {
            "recipe": stage.recipe,
            "values": root.to_values(stage.config),
            "folder": str(stage.folder),
            "discard": discard,
            "micro_batch_tokens": micro_batch_tokens,
        }
        write_json(order_file, order)
        workers: list[subprocess.Popen[bytes]] = []
        try:
            with _forward_signals(workers) as signals:
                workers += [_start_worker(order_file, rank, count) for rank in range(count)]
                cause = _wait_for_all(workers, signals)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        codes = [worker.wait() for worker in workers]
        return _outcome(stage, order_file.parent, codes, cause, signals)


def _start_worker(order_file: Path, rank: int, count: int) -> subprocess.Popen[bytes]:
    """Start one of `count` workers, with the environment that torchrun would give it."""
    launch = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    environment = {**os.environ, **{name: str(value) for name, value in launch.items()}}
    # The workers find each other through this file, so no free port has to be chosen.
    environment[ranks.MEETING] = f"file://{order_file.parent / 'meeting'}"
    if sys.platform == "linux":
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all workers are on this machine
    command = [sys.executable, "-m", "rlhf_lab.stages.worker", str(order_file), str(os.getpid())]
    # A session of its own: Ctrl-C reaches the parent alone, which forwards it once.
    return subprocess.Popen(command, env=environment, start_new_session=True)


@contextmanager
def _forward_signals(workers: Sequence[subprocess.Popen[bytes]]) -> Iterator[list[int]]:
    """Forward signals that tell a run to stop to every worker; yields the list of those received."""
    received: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        for worker in workers:
            if worker.poll() is None:
                worker.send_signal(number)

    with handled(handle):
        yield received


def _wait_for_all(workers: Sequence[subprocess.Popen[bytes]], signals: Sequence[int]) -> int | None:
    """Wait for all workers. Returns the rank whose failure was the cause, or None.

    Once one has ended, the others may wait for it in a collective operation that never completes, so they are killed
    after END_SECONDS. A second Ctrl-C kills them at once.
    """
    failed: dict[int, int] = {}
    deadline = float("inf")
    while True:
        running = [worker for worker in workers if worker.poll() is None]
        ended = {rank: code for rank, worker in enumerate(workers) if (code := worker.poll()) is not None}
        newly_failed = [rank for rank, code in ended.items() if code not in (0, STOPPED) and rank not in failed]
        failed |= {rank: ended[rank] for rank in newly_failed}
        if not running:
            return _cause(failed)
        limit = END_SECONDS["failed" if failed else "ended"] if ended else float("inf")
        deadline = min(deadline, time.monotonic() + limit)
        if time.monotonic() > deadline or signals.count(signal.SIGINT) > 1:
            for worker in running:
                worker.kill()
            return _cause(failed) if failed else workers.index(running[0])
        time.sleep(POLL_SECONDS)


def _cause(failed: dict[int, int]) -> int | None:
    """The rank that made the others fail. `failed`: rank → exit status, in the order in which they were seen.

    A process killed by a signal comes first, because its peers may report a lost connection before its own end is
    seen. SIGABRT does not count: a process may abort because it lost a peer.
    """
    ended_by_signal = [rank for rank, code in failed.items() if code < 0 and -code != signal.SIGABRT]
    return next(iter([*ended_by_signal, *failed]), None)


def _outcome(
    stage: Stage, folder: Path, codes: Sequence[int], cause: int | None, signals: Sequence[int]
) -> dict[str, Any]:
    """The stage's result. Raises Interrupted, Paused or the error of the process that failed first."""
    result: dict[str, Any] = read_json(stage.folder / "result.json") or {}
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
        _write_status(stage, result, "interrupted", error)
        raise Interrupted(error)
    rank = cause or 0
    report = read_json(folder / f"error_{rank}.json")
    if report:
        console.print(escape(report["traceback"]), end="", soft_wrap=True)
        error = report["error"]
        if report["micro_batch_tokens"]:
            raise DeviceMemoryError(f"{stage.recipe}: {error}", report["micro_batch_tokens"])
    else:
        error = f"process {rank} of {len(codes)} ended with {_describe_exit(codes[rank])}"
    _write_status(stage, result, "failed", error)
    raise LabError(f"{stage.recipe}: {error}")


def _write_status(stage: Stage, result: dict[str, Any], status: str, error: str) -> None:
    """Write into result.json why the stage ended. Rank 0 may have had no time to, or know only that a peer left."""
    make_folder(stage.folder)  # the workers may have ended before they made it
    write_json(stage.folder / "result.json", {**result, "status": status, "error": error})


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    killed = " (out of memory?)" if -code == signal.SIGKILL else ""
    return f"signal {signal.Signals(-code).name}{killed}"
