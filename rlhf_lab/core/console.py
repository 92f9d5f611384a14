"""The console of a run, and its progress: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

CLOSED_PIPE = 141
"""Exit status of a command whose reader has gone, such as `| head`: 128 + SIGPIPE, as shells report it."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        leave_closed_pipe()


def leave_closed_pipe() -> NoReturn:
    """End without a traceback when nobody reads what is printed any more."""
    # Python flushes what is left in its buffer when it ends: into nothing, or it would fail on the pipe once more
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(CLOSED_PIPE)


def open_console() -> Console:
    """The console of this process: as wide as the terminal or as COLUMNS says; a log has no width and gets 140."""
    # no emoji: the hub data set `name:train:50` must not be printed with a picture of a train
    opened = _Console(highlight=False, emoji=False)
    if opened.is_terminal or os.environ.get("COLUMNS"):
        return opened
    return _Console(highlight=False, emoji=False, width=140)


console = open_console()
QUIET_SECONDS = 15.0
"""Time between two lines of progress where there is no terminal."""
# transformers imports DeepSpeed where it is installed, and that warns on every machine without a GPU
logging.getLogger("DeepSpeed").addFilter(lambda record: "Setting accelerator to CPU" not in record.getMessage())


class Ticker:
    """Progress of one piece of work; `advance` is cheap enough for every step."""

    def __init__(self, name: str, total: int, bar: Progress | None):
        self.name = name
        self.total = total
        self.done = 0
        self._bar = bar
        self._task = bar.add_task(name, total=total, note="") if bar else None
        self._start = self._last = time.monotonic()

    def advance(self, amount: int = 1, note: str = "") -> None:
        self.done += amount
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self.done, note=note)
        elif time.monotonic() - self._last > QUIET_SECONDS:
            self._last = time.monotonic()
            seconds_each = (self._last - self._start) / max(1, self.done)
            seconds_left = seconds_each * (self.total - self.done)
            console.print(f"  {self.name}: {self.done}/{self.total}, about {seconds_left:.0f} s left  {note}")


@contextmanager
def progress(name: str, total: int, done: int = 0) -> Iterator[Ticker]:
    """A progress bar on a terminal; a line every quarter minute elsewhere."""
    if not console.is_terminal:
        ticker = Ticker(name, total, None)
        ticker.advance(done)
        yield ticker
        return
    columns = (
        TextColumn("  {task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[note]}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        ticker = Ticker(name, total, bar)
        ticker.advance(done)
        yield ticker
