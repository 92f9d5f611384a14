"""Console of a process: what a command prints, how much of it, and the log file that keeps it.

There are three kinds of output. `print` is for results and errors, `inform` for the course of a run, which `-q` omits,
and `detail` for lines that only `-v` shows. All of them go to the open logs (`logged`) as plain text with times.
Progress bars are in progress.py.
"""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

from rich.console import Console
from rich.control import Control

from rlhf_lab.core.redaction import redacted

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

CLOSED_PIPE = 141
"""Exit status of a command whose output pipe was closed, e.g. by `| head`: 128 + SIGPIPE, the convention of shells."""
VERBOSITY = "RLHF_LAB_VERBOSITY"
"""Environment variable with the verbosity of a command, so that the processes that it starts inherit it."""
QUIET, VERBOSE = "quiet", "verbose"
"""Values of `VERBOSITY`; without one, results and the course of a run are printed."""
LOG_WIDTH = 140
"""Width, in columns, of output that is not written to a terminal, such as a log file."""
LOG_FILE = "log.txt"
"""File of a run directory with what the console printed while the run was built."""
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass
class _Log:
    """Log file that is being written.

    Attributes:
        path: the file; nothing is written before its directory exists.
        pending: lines to be written once it does.
        muted: True if another process writes what this one prints.
    """

    path: Path
    pending: list[str] = field(default_factory=list)
    muted: bool = False

    def add(self, lines: list[str]) -> None:
        if self.muted:
            return
        self.pending += lines
        if not self.pending or not self.path.parent.is_dir():
            return
        # A log is less important than the run: the run itself reports a disk that refuses writes.
        with suppress(OSError):
            with self.path.open("a", encoding="utf-8", errors="replace") as file:
                file.writelines(self.pending)
            self.pending.clear()


class LabConsole(Console):
    """Console that also writes to log files, and can divert its output to a file."""

    def __init__(self, **options: Any):
        # Without emoji=False, rich would print the hub data set `name:train:50` with a picture of a train. In a
        # notebook, rich would bypass the standard output, which callers redirect and forked processes write to.
        super().__init__(highlight=False, emoji=False, force_jupyter=False, **options)
        self._logs: list[_Log] = []
        self._diverted: IO[str] | None = None

    def on_broken_pipe(self) -> None:
        leave_closed_pipe()

    def print(self, *objects: Any, **options: Any) -> None:
        """Print a result or an error. Text is literal, and long lines are not broken, by default; see `_options`."""
        # A progress bar moves the cursor with control codes, which are no output.
        if objects and all(isinstance(item, Control) for item in objects):
            super().print(*objects, **options)
            return
        if self.quiet:
            return
        if self._diverted is None:
            super().print(*objects, **_options(objects, options))
        else:
            self._diverted.write(_as_text(objects, options))
        self._log(objects, options)

    def inform(self, *objects: Any, **options: Any) -> None:
        """Print a line about the course of a run; `-q` omits it."""
        if os.environ.get(VERBOSITY) != QUIET:
            self.print(*objects, **options)
        elif not self.quiet:
            self._log(objects, options)

    def detail(self, *objects: Any, **options: Any) -> None:
        """Print a line that only `-v` shows."""
        if os.environ.get(VERBOSITY) == VERBOSE:
            self.print(*objects, **options)
        elif not self.quiet:
            self._log(objects, options)

    @contextmanager
    def logged(self, directory: Path) -> Iterator[None]:
        """Append what is printed in this block to the log of a run directory, each line with its time."""
        path = directory / LOG_FILE
        if any(log.path == path for log in self._logs):
            yield
            return
        log = _Log(path)
        self._logs.append(log)
        try:
            yield
        finally:
            log.add([])
            self._logs.remove(log)

    @contextmanager
    def diverted(self, file: IO[str]) -> Iterator[None]:
        """Write what is printed in this block to a file, as plain text. Progress bars stay where they are."""
        # `file` is the standard output at the time of a call, which the caller may redirect for libraries that print.
        pinned, self.file = self._file, self.file
        outer, self._diverted = self._diverted, file
        try:
            yield
        finally:
            self._diverted = outer
            self._file = pinned

    @property
    def diverted_to(self) -> IO[str] | None:
        """File that gets the output in place of the standard output; None if nothing is diverted."""
        return self._diverted

    def print_for_parent(self) -> None:
        """Print to the standard output of this forked process. Its parent reads that output, prints it and logs it."""
        self._diverted = self._file = None
        for log in self._logs:
            log.muted = True

    def _log(self, objects: tuple[Any, ...], options: dict[str, Any]) -> None:
        if not self._logs:
            return
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        text = redacted(_as_text(objects, options))
        lines = [f"{stamp}  {line}".rstrip() + "\n" for line in text.splitlines()]
        for log in self._logs:
            log.add(lines)


def _options(objects: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of rich for what is printed.

    Text may contain brackets, such as those of an override, and paths that are copied. `markup=True` is for text with
    styles, and `soft_wrap=False` for prose that is broken between words. Cells of tables have markup in any case.
    """
    is_text = all(isinstance(item, str) for item in objects)
    return {"markup": False, "soft_wrap": True, **options} if is_text else options


def _as_text(objects: tuple[Any, ...], options: dict[str, Any]) -> str:
    """Return output as plain text without control characters."""
    text = io.StringIO()
    as_text = Console(file=text, width=LOG_WIDTH, highlight=False, emoji=False, color_system=None, force_jupyter=False)
    as_text.print(*objects, **_options(objects, options))
    return CONTROL_CHARACTERS.sub("", text.getvalue())


def leave_closed_pipe() -> NoReturn:
    """Exit without a traceback when the reader of the output has closed the pipe."""
    # Python flushes its output buffer at exit. Redirect it to /dev/null, or the flush fails on the pipe once more.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(CLOSED_PIPE)


def open_console() -> LabConsole:
    """Open the console of this process. Its width is the terminal's or COLUMNS; a log without a width gets 140."""
    opened = LabConsole()
    if opened.is_terminal or os.environ.get("COLUMNS"):
        return opened
    return LabConsole(width=LOG_WIDTH)


console = open_console()
# transformers imports DeepSpeed if it is installed, and DeepSpeed then warns on every machine without a GPU
logging.getLogger("DeepSpeed").addFilter(lambda record: "Setting accelerator to CPU" not in record.getMessage())


def number_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]] = (), *, title: Text | str | None = None, wraps: bool = False
) -> Table:
    """Return a table of plain text for a terminal: its first column is left-aligned, the others are numbers.

    Args:
        wraps: True if the columns of numbers may wrap.
    """
    # Imported late, because most commands print no table, and every command imports this module.
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, heading in enumerate(headings):
        table.add_column(escape(heading), justify="right" if index else "left", no_wrap=index > 0 and not wraps)
    for row in rows:
        table.add_row(*map(escape, row))
    return table
