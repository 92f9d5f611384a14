"""Sweep jobs started by submitit: wait for all of them, stop them with the sweep, requeue them.

submitit polls sacct for the state of its jobs. Many clusters keep no accounting data; there a sweep would wait forever
for a killed job. squeue always answers. In addition, submitit gives up on all jobs once one has left no result. Needs
`pip install 'rlhf_lab[slurm]'`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from submitit.core.core import InfoWatcher, Job
from submitit.core.job_environment import JobEnvironment
from submitit.core.utils import UncompletedJobError
from submitit.local.local import LocalJob
from submitit.slurm.slurm import SlurmJob

from rlhf_lab.core.console import console

QUEUE = ("squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i %T")
ENDED = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"}
ENDED |= {"REVOKED", "TIMEOUT", "GONE"}
"""Final states of Slurm. GONE is our own state for a job that squeue no longer lists."""
POLL_SECONDS = 15
END_SECONDS = 120
"""Seconds in which jobs of a stopped sweep may save a checkpoint."""


class SlurmQueue(InfoWatcher):
    """States of a sweep's jobs from squeue.

    A job is done after two consecutive polls in a final state, because a requeued job briefly looks finished.
    """

    def __init__(self) -> None:
        super().__init__(delay_s=POLL_SECONDS)
        self._polls_ended: Counter[str] = Counter()  # job → consecutive polls in a final state

    def _make_command(self) -> list[str]:
        return list(QUEUE)

    def read_info(self, string: bytes | str) -> dict[str, dict[str, str]]:
        text = string if isinstance(string, str) else string.decode()
        shown = dict(line.split(maxsplit=1) for line in text.splitlines())
        states = {job: shown.get(job, "GONE") for job in self._registered}
        for job, state in states.items():
            self._polls_ended[job] = self._polls_ended[job] + 1 if state in ENDED else 0
        return {job: {"State": state} for job, state in states.items()}

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        return self.get_info(job_id, mode=mode).get("State", "UNKNOWN")

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        self.get_info(job_id, mode=mode)
        return self._polls_ended[job_id] >= 2

    def end(self) -> None:
        """Tell all jobs to save and stop, and wait until they have."""
        arrays = {job.partition("_")[0] for job in self._registered}  # "7_1" is task 1 of array 7
        subprocess.run(["scancel", *arrays], check=False)
        _wait_until(lambda: all(self.is_done(job) for job in self._registered))


class LocalQueue(InfoWatcher):
    """Processes that submitit started on this machine, identified by the pid of their controllers."""

    def register_job(self, job_id: str) -> None:
        self._registered.add(job_id)

    def end(self) -> None:
        """Tell all jobs to save and stop, and wait until they have. submitit's controller forwards TERM to its job."""
        for job in self._registered:
            with suppress(ProcessLookupError):
                os.kill(int(job), signal.SIGTERM)
        _wait_until(lambda: not any(_is_running(int(job)) for job in self._registered))


def _is_running(child: int) -> bool:
    try:
        return os.waitpid(child, os.WNOHANG)[0] == 0
    except ChildProcessError:
        return False


def _wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + END_SECONDS
    while not done() and time.monotonic() < deadline:
        time.sleep(0.5)


@contextmanager
def followed(launcher: str) -> Iterator[list[str | None]]:
    """Make submitit's launcher wait for every job in this block; on an interrupt, stop the jobs after they have saved.

    Yields a list with one entry per job, in order: the reason if it left no result, else None.
    """
    on_slurm = launcher == "submitit_slurm"
    job_class = SlurmJob if on_slurm else LocalJob
    queue = SlurmQueue() if on_slurm else LocalQueue()
    ends: list[str | None] = []
    # The launcher creates its jobs itself, so their class is patched while it runs.
    patches = {"watcher": queue, "results": _tolerate_missing(job_class.results, ends)}
    originals = {name: getattr(job_class, name) for name in patches}
    for name, value in patches.items():
        setattr(job_class, name, value)
    try:
        yield ends
    except KeyboardInterrupt:
        console.inform("  stopping the jobs: they save a checkpoint first")
        queue.end()
        raise
    finally:
        for name, value in originals.items():
            setattr(job_class, name, value)


def _tolerate_missing(
    results: Callable[[Job[Any]], list[Any]], ends: list[str | None]
) -> Callable[[Job[Any]], list[Any]]:
    """Wrap `Job.results` to return an empty result for a job that has left none, and to record why."""

    def tolerant_results(job: Job[Any]) -> list[Any]:
        try:
            job_results = results(job)
            ends.append(None)
            return job_results
        except UncompletedJobError:
            ends.append(f"job {job.job_id} left no result (state {job.state}); its output: {job.paths.stderr}")
            return [JobReturn(status=JobStatus.COMPLETED)]

    return tolerant_results


def signals_from_now() -> Callable[[], list[int]]:
    """Return a function that lists the signals that this job has received since this call, whichever handler took them.

    From now on TERM raises KeyboardInterrupt; submitit ignores it.
    """
    read_end, write_end = os.pipe()
    for end in (read_end, write_end):
        os.set_blocking(end, False)
    # Python writes the number of each signal to this pipe, even if a handler of the training loop handles it.
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def received() -> list[int]:
        with suppress(BlockingIOError):  # the pipe is empty
            return list(os.read(read_end, 4096))
        return []

    return received


def queue_again(signals: list[int]) -> str | None:
    """Let submitit requeue this job, which has stopped and saved, and exit the process.

    USR1 and USR2 request it, and so does TERM in a preempted job. Return the reason if the job is not requeued because
    it has reached its time limit too often; None if no signal requested it.
    """
    requested = {signal.SIGUSR1, signal.SIGUSR2}.intersection(signals)
    if requested or (signal.SIGTERM in signals and _is_preempted()):
        try:
            signal.raise_signal(JobEnvironment._usr_sig())  # submitit's own handler requeues and exits
        except UncompletedJobError as error:
            return str(error)
    return None


def _is_preempted() -> bool:
    """Return True if TERM came from a preemption: Slurm still lists such a job as running, but not a cancelled one."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return False
    if "SLURM_ARRAY_TASK_ID" in os.environ:  # one task has the number of the array, which stands for all tasks
        job = "{SLURM_ARRAY_JOB_ID}_{SLURM_ARRAY_TASK_ID}".format_map(os.environ)
    command = ["scontrol", "show", "job", "--oneliner", job]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    return "JobState=RUNNING" in process.stdout.split()
