"""Progress of long loops: one bar per loop on a terminal, an occasional line elsewhere.

A loop opens a `progress` or iterates over `tracked`. Loops inside loops have their own bars. A bar appears once its
loop has taken a second, and is drawn by the loop itself: there is no thread, so a process may fork at any time.

A process that does not own the terminal writes its bars to a file (`PUBLISHED`), and the process that does own it shows
them with a `Mirror`. This is how stages that are built in parallel, and jobs of a study, are shown.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rich.console import RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rlhf_lab.core.console import QUIET, VERBOSE, VERBOSITY, console

Item = TypeVar("Item")
PUBLISHED = "RLHF_LAB_PROGRESS"
"""Environment variable with the file to which this process writes its bars, for the process that shows them."""
SHOWN_AFTER = 1.0
"""Seconds before a bar appears, so that short loops do not flicker."""
REFRESH_SECONDS = 0.1
"""Minimum seconds between two drawings of the bars."""
PUBLISH_SECONDS = 0.5
"""Minimum seconds between two writings, or two readings, of the file of another process."""
LINE_SECONDS = 300.0
"""Minimum seconds between two lines of a loop if the output is not a terminal."""
VERBOSE_LINE_SECONDS = 15.0
"""The same with `-v`."""
BAR_WIDTH = 30


@dataclass(eq=False)
class Ticker:
    """Progress of one loop. `advance` is cheap enough to call at every step.

    Attributes:
        name: what the loop does.
        total: number of steps.
        done: number of completed steps.
        note: short text behind the bar, such as the loss.
        first: number of steps that were complete at the start, e.g. those before a checkpoint.
        started: start of the loop (`time.monotonic`).
        last_line: time of the last line in place of a bar.
    """

    name: str
    total: int
    done: int = 0
    note: str = ""
    first: int = 0
    started: float = field(default_factory=time.monotonic)
    last_line: float = field(default_factory=time.monotonic)

    def advance(self, amount: int = 1, note: str = "") -> None:
        """Count completed steps."""
        self.done += amount
        self.note = note
        _display.refresh()

    @property
    def seconds(self) -> float:
        """Seconds since the start of the loop."""
        return time.monotonic() - self.started

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds until the end; None before the first step is complete."""
        steps = self.done - self.first
        return self.seconds / steps * (self.total - self.done) if steps > 0 else None


class _Display:
    """Bars of all running loops of this process."""

    def __init__(self) -> None:
        self.tickers: list[Ticker] = []
        self._live: Live | None = None
        self._last = 0.0
        # Jobs of a study are watched by a thread, which may draw while the main thread prints.
        self._lock = threading.RLock()

    def open(self, ticker: Ticker) -> None:
        with self._lock:
            self.tickers.append(ticker)

    def close(self, ticker: Ticker) -> None:
        with self._lock:
            self.tickers.remove(ticker)
            if not self.tickers:
                self.hide()
            if not self.tickers and PUBLISHED in os.environ:
                self._publish(os.environ[PUBLISHED])

    def hide(self) -> None:
        """Erase the bars until the next refresh."""
        with self._lock:
            live, self._live = self._live, None
            if live is not None:
                live.stop()

    def refresh(self) -> None:
        """Show the present state. Does nothing if it was shown a moment ago."""
        now = time.monotonic()
        is_published = PUBLISHED in os.environ
        if now - self._last < (PUBLISH_SECONDS if is_published else REFRESH_SECONDS):
            return
        self._last = now
        if console.quiet:  # another rank shows the progress of all
            return
        with self._lock:
            if is_published:
                self._publish(os.environ[PUBLISHED])
            elif draws_bars():
                self._draw(now)
            else:
                self._print_lines(now)

    def _draw(self, now: float) -> None:
        if self._live is None:
            if not any(now - ticker.started > SHOWN_AFTER for ticker in self.tickers):
                return
            self._live = Live(console=console, auto_refresh=False, transient=True, get_renderable=self._bars)
            self._live.start()
        self._live.refresh()

    def _bars(self) -> RenderableType:
        grid = Table.grid(padding=(0, 1))
        for _ in range(5):
            grid.add_column(no_wrap=True, overflow="ellipsis")
        for ticker in self.tickers:
            if ticker.seconds > SHOWN_AFTER:
                # Text objects, because names and notes may contain characters of rich's markup.
                grid.add_row(
                    Text(f"  {ticker.name}"),
                    ProgressBar(max(1, ticker.total), ticker.done, width=BAR_WIDTH),
                    f"{ticker.done}/{ticker.total}",
                    _times(ticker),
                    Text(ticker.note, style="dim"),
                )
        return grid

    def _print_lines(self, now: float) -> None:
        wait = VERBOSE_LINE_SECONDS if os.environ.get(VERBOSITY) == VERBOSE else LINE_SECONDS
        for ticker in self.tickers:
            if now - ticker.last_line > wait:
                ticker.last_line = now
                line = f"  {ticker.name}: {ticker.done}/{ticker.total}, {_times(ticker)}  {ticker.note}"
                console.inform(line.rstrip())

    def _publish(self, path: str) -> None:
        """Write the bars to a file for a `Mirror`."""
        bars = []
        for ticker in self.tickers:
            bars.append(
                {
                    "name": ticker.name,
                    "total": ticker.total,
                    "done": ticker.done,
                    "note": ticker.note,
                    "first": ticker.first,
                    "seconds": ticker.seconds,
                }
            )
        temporary = f"{path}.part"
        with suppress(OSError):  # progress must not stop a run
            Path(temporary).write_text(json.dumps(bars), encoding="utf-8")
            os.replace(temporary, path)


_display = _Display()
_labels: list[str] = []
"""Labels that are put before the names of loops, such as the name of a policy, outermost first; see `labelled`."""


def _times(ticker: Ticker) -> str:
    left = ticker.seconds_left
    return clock(ticker.seconds) if left is None else f"{clock(ticker.seconds)}, about {clock(left)} left"


def clock(seconds: float) -> str:
    """Return a duration as minutes and seconds, or hours, minutes and seconds: "2:05", "1:02:05"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def draws_bars() -> bool:
    """Return True if this process may draw bars: its output is a terminal, and neither -q nor its rank silences it."""
    if console.quiet or os.environ.get(VERBOSITY) == QUIET or not console.is_terminal or console.is_dumb_terminal:
        return False
    # Rich treats a file as a terminal if FORCE_COLOR is set, but bars in a file are only noise.
    return bool(getattr(console.file, "isatty", lambda: False)())


def is_followed() -> bool:
    """Return True if somebody sees bars of this process: on its terminal, or in the process that mirrors it."""
    return PUBLISHED in os.environ or draws_bars()


@contextmanager
def progress(name: str, total: int, done: int = 0) -> Iterator[Ticker]:
    """Show the progress of a loop in this block.

    Args:
        name: what the loop does, in a word or two.
        total: number of steps.
        done: number of steps that are already complete.
    """
    ticker = Ticker(": ".join((*_labels[-1:], name)), total, done, first=done)
    _display.open(ticker)
    try:
        yield ticker
    finally:
        _display.close(ticker)


def tracked(items: Sequence[Item], name: str) -> Iterator[Item]:
    """Yield the items and show the progress; see `progress`. An item counts once the next one is requested."""
    with progress(name, len(items)) as ticker:
        for item in items:
            yield item
            ticker.advance()


@contextmanager
def labelled(label: str) -> Iterator[None]:
    """Put a label, such as the name of a policy, before the names of all loops in this block."""
    _labels.append(label)
    try:
        yield
    finally:
        _labels.pop()


def hide_bars() -> None:
    """Erase the bars until one of them advances. Call this before something else writes to the terminal."""
    _display.hide()


def publish_only(path: Path) -> None:
    """Let a forked process write its bars to a file, without those of its parent."""
    _display.tickers.clear()
    os.environ[PUBLISHED] = str(path)


class Mirror:
    """Bars of another process in this one, read from the file to which that process writes them.

    Args:
        path: the file; without it there are no bars.
        label: what the other process does; it stands before the names of its bars.
    """

    def __init__(self, path: Path, label: str):
        self.path = path
        self.label = label
        self._tickers: dict[str, Ticker] = {}
        self._last = 0.0

    def update(self) -> None:
        """Read the file again, unless that happened a moment ago."""
        now = time.monotonic()
        if now - self._last < PUBLISH_SECONDS:
            return
        self._last = now
        bars = self._read()
        for name in set(self._tickers) - {bar["name"] for bar in bars}:
            _display.close(self._tickers.pop(name))
        for bar in bars:
            self._show(bar)
        _display.refresh()

    def close(self) -> None:
        """Remove the bars and the file."""
        for ticker in self._tickers.values():
            _display.close(ticker)
        self._tickers.clear()
        with suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _read(self) -> list[dict[str, Any]]:
        try:
            bars: list[dict[str, Any]] = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # the process has written nothing yet, or has just ended
            return []
        return bars

    def _show(self, bar: dict[str, Any]) -> None:
        ticker = self._tickers.get(bar["name"])
        if ticker is None:
            # The training loop of a stage has the name of the stage, which is not repeated.
            name = bar["name"] if bar["name"] == self.label else f"{self.label}: {bar['name']}"
            ticker = self._tickers[bar["name"]] = Ticker(name, bar["total"])
            _display.open(ticker)
        # This process may have noticed the loop late, so the times are those of the other one.
        ticker.started = time.monotonic() - bar["seconds"]
        ticker.done, ticker.total, ticker.first, ticker.note = bar["done"], bar["total"], bar["first"], bar["note"]
