"""Console of a running study: one line per finished job, and bars of the running ones.

The process that runs the study prints all of it, because lines of several processes would cross its bars. It learns of
finished jobs from their job.json. Jobs in processes of their own write their bars to a file next to it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.markup import escape

from rlhf_lab.config.overrides import level_name, literal
from rlhf_lab.core.console import console
from rlhf_lab.core.files import read_json, read_object
from rlhf_lab.core.progress import Mirror, Ticker, clock, draws_bars, progress
from rlhf_lab.reports.policy_table import number
from rlhf_lab.studies.labels import configured_label
from rlhf_lab.studies.look_log import NOT_NEEDED

FOLLOWED = "RLHF_LAB_SWEEP_FOLLOWED"
"""Environment variable of jobs whose bars are shown by the process of the study."""
BARS = "bars.json"
"""File of a job's directory with the bars of a running job."""
POLL_SECONDS = 0.5

_shown: JobLines | None = None
"""Console of the study whose jobs run in this process; None without one."""


class JobLines:
    """Console of a study's jobs.

    Attributes:
        ticker: bar of the study, while its jobs run.

    Args:
        stored: indices of the jobs whose result was in the store before the study started.
        processes: number of jobs that run at the same time.
        estimates: True to estimate the time left. A study that stops when decided has its own estimate, and Slurm
            decides how many jobs run at the same time.
    """

    ticker: Ticker

    def __init__(self, directory: Path, stored: set[int], processes: int, *, estimates: bool):
        self.directory = directory
        self.stored = stored
        self.processes = processes
        self.estimates = estimates
        self.total = len(read_json(directory / "study.json")["jobs"])
        self._printed: set[int] = set()
        self._seconds: list[float] = []  # of the jobs that were built
        self._mirrors: dict[int, Mirror] = {}

    @contextmanager
    def shown(self, *, in_process: bool) -> Iterator[None]:
        """Show the jobs that run in this block.

        Args:
            in_process: True if they run in this process, one after another. They call `job_finished`, so that no
                thread is needed: a process with threads must not fork, which a job may do.
        """
        global _shown
        with progress("jobs", self.total) as self.ticker:
            if in_process:
                _shown = self
                try:
                    yield
                finally:
                    _shown = None
                    self.update(last=True)
                return
            if draws_bars():
                os.environ[FOLLOWED] = "1"
            stop = threading.Event()
            watch = threading.Thread(target=self._watch, args=(stop,), name="jobs", daemon=True)
            watch.start()
            try:
                yield
            finally:
                stop.set()
                watch.join()
                os.environ.pop(FOLLOWED, None)
                self.update(last=True)
                for mirror in self._mirrors.values():
                    mirror.close()

    def _watch(self, stop: threading.Event) -> None:
        while not stop.wait(POLL_SECONDS):
            self.update()

    def update(self, *, last: bool = False) -> None:
        """Print the lines of jobs that have finished since the last call, and show the bars of running ones.

        Args:
            last: True after all jobs; until then, an interrupted job may be requeued.
        """
        for index in range(self.total):
            if index in self._printed:
                continue
            directory = self.directory / "jobs" / str(index)
            record = read_object(directory / "job.json")
            if not record or (record["status"] == "interrupted" and not last):
                self._mirror(index, directory)
                continue
            self._printed.add(index)
            if index in self._mirrors:
                self._mirrors.pop(index).close()
            self._print(index, directory, record)
            if index in self.stored:  # it took no time, and says nothing about the time of the others
                self.ticker.first += 1
            self.ticker.advance()
        self.ticker.advance(0)

    def _mirror(self, index: int, directory: Path) -> None:
        if FOLLOWED in os.environ and index not in self._mirrors and (directory / BARS).exists():
            self._mirrors[index] = Mirror(directory / BARS, f"job {index + 1}")
        if index in self._mirrors:
            self._mirrors[index].update()

    def _print(self, index: int, directory: Path, record: Mapping[str, Any]) -> None:
        if record["status"] == NOT_NEEDED:
            return
        seconds = record.get("seconds") or 0.0
        if record["status"] == "failed":
            text = f"[red]{escape(job_words(directory, 'failed'))}:[/] {escape(str(record['error']))}"
            details = directory / "error.txt"
            see = f", see {escape(str(details))}" if details.exists() else ""
            console.print(f"  {text}{see}", markup=True)
            return
        result = read_object(Path(record["run"]) / "result.json") if record["run"] else {}
        if index not in self.stored and record["status"] == "completed":
            self._seconds.append(seconds)
        words = done_words(directory, {**result, "status": record["status"]}, seconds)
        console.inform(f"  {words}{self._time_left()}")

    def _time_left(self) -> str:
        """Return "; about 3:05 left", from the mean time of the jobs so far; empty if it is not known."""
        waiting = set(range(self.total)) - self._printed - self.stored
        if not (self.estimates and self._seconds and waiting):
            return ""
        mean = sum(self._seconds) / len(self._seconds)
        return f"; about {clock(mean * len(waiting) / self.processes)} left"


def job_finished() -> None:
    if _shown is not None:
        _shown.update()


def job_words(directory: Path, event: str) -> str:
    """Return a line on the job of a directory: "job 3 of 12 done: algorithm.beta=0.3 seed=1"."""
    plan = read_json(directory.parents[1] / "study.json")
    labels, jobs = plan.get("labels") or {}, plan["jobs"]
    overrides = jobs[int(directory.name)]["overrides"].items()
    names = [configured_label(labels, key, level_name(value)) or f"{key}={literal(value)}" for key, value in overrides]
    return f"job {int(directory.name) + 1} of {len(jobs)} {event}: {' '.join(names)}"


def done_words(directory: Path, result: Mapping[str, Any], seconds: float) -> str:
    """Return a line on a finished job, with the study's primary metric or else the run's own."""
    metrics = result.get("metrics") or {}
    if result.get("policies"):
        metrics = {**metrics, **result["policies"][-1]["metrics"]}
    study_primary = read_json(directory.parents[1] / "study.json")["primary"]
    candidates = [study_primary, *(result.get("primary") or [])]
    primary = next((name for name in candidates if name in metrics), None)
    value = f"{primary} {number(metrics[primary])}, " if primary else ""
    event = "done" if result["status"] == "completed" else result["status"]
    return f"{job_words(directory, event)}: {value}{seconds:.0f} s"
