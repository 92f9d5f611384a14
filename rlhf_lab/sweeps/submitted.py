"""Jobs that submitit starts for a sweep: waits for every one of them, ends them with the sweep, queues them again.

submitit asks sacct how its jobs fare. Many clusters keep no accounts, and there a sweep waits forever for a job that
was killed; squeue always answers. And where one job has left no result, submitit gives up on the others. Needs
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
"""States that Slurm does not leave by itself; GONE is said here of a job that squeue no longer shows."""
POLL_SECONDS = 15
END_SECONDS = 120
"""How long jobs of a stopped sweep may take to save what they are at."""


class SlurmQueue(InfoWatcher):
    """What squeue says of a sweep's jobs. An ended job is believed at second sight: one queued again flickers."""

    def __init__(self) -> None:
        super().__init__(delay_s=POLL_SECONDS)
        self._sightings: Counter[str] = Counter()

    def _make_command(self) -> list[str]:
        return list(QUEUE)

    def read_info(self, string: bytes | str) -> dict[str, dict[str, str]]:
        """Job → its state, for the jobs of the sweep."""
        text = string if isinstance(string, str) else string.decode()
        shown = dict(line.split(maxsplit=1) for line in text.splitlines())
        states = {job: shown.get(job, "GONE") for job in self._registered}
        for job, state in states.items():
            self._sightings[job] = self._sightings[job] + 1 if state in ENDED else 0
        return {job: {"State": state} for job, state in states.items()}

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        return self.get_info(job_id, mode=mode).get("State", "UNKNOWN")

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        self.get_info(job_id, mode=mode)
        return self._sightings[job_id] >= 2

    def end(self) -> None:
        """Tell all jobs to save and end, and wait until they have."""
        subprocess.run(["scancel", *{job.partition("_")[0] for job in self._registered}], check=False)
        _wait(lambda: all(self.is_done(job) for job in self._registered))


class LocalQueue(InfoWatcher):
    """The processes that submitit started on this machine, by pid of the controller of each."""

    def register_job(self, job_id: str) -> None:
        self._registered.add(job_id)

    def end(self) -> None:
        """Tell all jobs to save and end, and wait until they have. A controller hands TERM on to its job."""
        for job in self._registered:
            with suppress(ProcessLookupError):
                os.kill(int(job), signal.SIGTERM)
        _wait(lambda: not any(_runs(int(job)) for job in self._registered))


def _runs(child: int) -> bool:
    try:
        return os.waitpid(child, os.WNOHANG)[0] == 0
    except ChildProcessError:
        return False


def _wait(done: Callable[[], bool]) -> None:
    end = time.monotonic() + END_SECONDS
    while not done() and time.monotonic() < end:
        time.sleep(0.5)


@contextmanager
def followed(launcher: str) -> Iterator[list[str | None]]:
    """In this block the launcher waits for every job. Yields a list that gets, for each job in order, how it ended
    where it left no result, else None. An interrupt ends the jobs too, saved.

    Args:
        launcher: `submitit_slurm` or `submitit_local`.
    """
    kind, queue = (SlurmJob, SlurmQueue()) if launcher == "submitit_slurm" else (LocalJob, LocalQueue())
    ends: list[str | None] = []
    ours = {"watcher": queue, "results": _forgiving(kind.results, ends)}
    theirs = {name: getattr(kind, name) for name in ours}
    for name, value in ours.items():
        setattr(kind, name, value)
    try:
        yield ends
    except KeyboardInterrupt:
        console.print("  stopping the jobs: they save what they are at")
        queue.end()
        raise
    finally:
        for name, value in theirs.items():
            setattr(kind, name, value)


def _forgiving(results: Callable[[Job[Any]], list[Any]], ends: list[str | None]) -> Callable[[Job[Any]], list[Any]]:
    """`Job.results`, which gives an empty result for a job that has left none."""

    def forgiving(job: Job[Any]) -> list[Any]:
        try:
            found = results(job)
            ends.append(None)
            return found
        except UncompletedJobError:
            ends.append(f"job {job.job_id} left no result (state {job.state}); what it printed: {job.paths.stderr}")
            return [JobReturn(status=JobStatus.COMPLETED)]

    return forgiving


def signals_from_now() -> Callable[[], list[int]]:
    """A function that tells which signals have come to this job, whoever handled them. TERM, which submitit lets pass,
    ends it from now on."""
    receive, send = os.pipe()
    for end in (receive, send):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(send, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def came() -> list[int]:
        with suppress(BlockingIOError):
            return list(os.read(receive, 4096))
        return []

    return came


def queue_again(signals: list[int]) -> str | None:
    """Have submitit queue its job again, which has been stopped and saved, and end the process.

    USR1 and USR2 ask for it, and TERM in a job that is being preempted. Returns why a job is not queued again that has
    reached its time limit too often, or None.
    """
    asked = {signal.SIGUSR1, signal.SIGUSR2}.intersection(signals)
    if asked or (signal.SIGTERM in signals and _kept()):
        try:
            signal.raise_signal(JobEnvironment._usr_sig())
        except UncompletedJobError as error:
            return str(error)
    return None


def _kept() -> bool:
    """Whether Slurm means this job to run: it was not cancelled."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return False
    shown = subprocess.run(["scontrol", "show", "job", "--oneliner", job], capture_output=True, text=True, check=False)
    return "JobState=RUNNING" in shown.stdout.split()
