"""Side-by-side timing: contestants take turns within each round, so a busy machine slows all of them alike.

With one thread and no GPU the clock counts the CPU time of this process, which leaves out the time other processes
take from it; otherwise it is the wall clock.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import torch

Work = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """One comparison.

    Attributes:
        ours_s, theirs_s: median seconds.
        ratio: median over rounds of theirs/ours, None when the other side could not run.
        bar: the ratio asked for, None for information only.
        note: what could not run, and why.
    """

    work: str
    against: str
    ours_s: float | None
    theirs_s: float | None
    ratio: float | None
    bar: float | None
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.ratio is None:
            return self.note
        if self.bar is None:
            return "–"
        return "pass" if self.ratio >= self.bar else "short"

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "verdict": self.verdict}


def race(contestants: Mapping[str, Work], rounds: int, warm_up: int = 1) -> dict[str, list[float]]:
    """Seconds of every contestant in every round, warm-up rounds left out."""
    gpu = torch.cuda.is_available()
    clock = time.process_time if torch.get_num_threads() == 1 and not gpu else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(warm_up + rounds):
        for name, work in contestants.items():
            start = clock()
            work()
            if gpu:
                torch.cuda.synchronize()
            if turn >= warm_up:
                seconds[name].append(clock() - start)
    return seconds


def compare(work: str, against: str, ours: list[float], theirs: list[float], bar: float | None) -> Row:
    ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
    return Row(work, against, statistics.median(ours), statistics.median(theirs), ratio, bar)
