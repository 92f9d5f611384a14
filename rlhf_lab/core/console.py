"""Console output and progress of a run: a progress bar on a terminal, an occasional line in a log."""

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
"""Exit status of a command whose output pipe was closed, e.g. by `| head`: 128 + SIGPIPE, the convention of shells."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        leave_closed_pipe()


def leave_closed_pipe() -> NoReturn:
    """Exit without a traceback when the reader of the output has closed the pipe."""
    # Python flushes its output buffer at exit. Redirect it to /dev/null, or the flush fails on the pipe once more.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(CLOSED_PIPE)


def open_console() -> Console:
    """Open the console of this process. Its width is the terminal's or COLUMNS; a log without a width gets 140."""
    # Without emoji=False, rich would print the hub data set `name:train:50` with a picture of a train.
    opened = _Console(highlight=False, emoji=False)
    if opened.is_terminal or os.environ.get("COLUMNS"):
        return opened
    return _Console(highlight=False, emoji=False, width=140)


console = open_console()
QUIET_SECONDS = 15.0
"""Minimum seconds between two progress lines if the output is not a terminal."""
# transformers imports DeepSpeed if it is installed, and DeepSpeed then warns on every machine without a GPU
logging.getLogger("DeepSpeed").addFilter(lambda record: "Setting accelerator to CPU" not in record.getMessage())


class Ticker:
    """Progress of one piece of work. `advance` is cheap enough to call at every step."""

    def __init__(self, name: str, total: int, bar: Progress | None):
        self.name = name
        self.total = total
        self.done = 0
        self._bar = bar
        self._task = bar.add_task(name, total=total, note="") if bar else None
        self._start = self._last = time.monotonic()

    def advance(self, amount: int = 1, note: str = "") -> None:
        self.done += amount
        # rich returns a task id for each bar; both are None if the output is a log
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self.done, note=note)
        elif time.monotonic() - self._last > QUIET_SECONDS:
            self._last = time.monotonic()
            seconds_each = (self._last - self._start) / max(1, self.done)
            seconds_left = seconds_each * (self.total - self.done)
            console.print(f"  {self.name}: {self.done}/{self.total}, about {seconds_left:.0f} s left  {note}")


@contextmanager
def progress(name: str, total: int, done: int = 0) -> Iterator[Ticker]:
    """Show a progress bar on a terminal; print a line every 15 seconds elsewhere."""
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
