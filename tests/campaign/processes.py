"""Real runs of the command line without the cost of importing torch: each is a fork of a process that has imported it.

A run has its own session, so that everything it leaves behind is found. It can call an action at an exact step, such
as just before its third rename. These steps are the calls by which a run changes files below outputs/.
"""

from __future__ import annotations

import json
import os
import resource
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rlhf_lab.core import files

TIMEOUT_S = 300.0
GRACE_S = 20.0
"""For the processes of a run to end after the first of them has."""


class Moment(NamedTuple):
    """One change of a file: `what` is about to happen or has, and the file's name."""

    what: str
    name: str


@dataclass
class Run:
    """A started run.

    Attributes:
        process: its id, which is also that of its session.
        log: what it prints.
    """

    process: int
    log: Path

    def wait(self) -> int:
        """Return its exit status, or minus the signal that stopped it. Kill what is left of it after TIMEOUT_S."""
        end = time.monotonic() + TIMEOUT_S
        while time.monotonic() < end:
            found, status = os.waitpid(self.process, os.WNOHANG)
            if found:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        for process in members(self.process):
            os.kill(process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        raise TimeoutError(f"no end after {TIMEOUT_S} s:\n{self.text()}")

    def send(self, number: int) -> None:
        """Send a signal to the first process; Ctrl-C goes to all, as from a terminal. A zombie takes it as well."""
        (os.killpg if number == signal.SIGINT else os.kill)(self.process, number)

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def orphans(self) -> list[int]:
        """Return processes of the run that are alive GRACE_S after it finished, and kill them."""
        end = time.monotonic() + GRACE_S
        while (left := members(self.process)) and time.monotonic() < end:
            time.sleep(0.05)
        for process in left:
            os.kill(process, signal.SIGKILL)
        return left


def members(session: int) -> list[int]:
    """Return the processes of a session that are still running."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of = path.read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        if int(of) == session and state != "Z":
            found.append(int(path.parent.name))
    return found


def start(
    arguments: Sequence[str],
    directory: Path,
    log: Path,
    *,
    at: int | None = None,
    action: Callable[[Moment], None] | None = None,
    record: Path | None = None,
    largest_file: int | None = None,
) -> Run:
    """Run `python -m rlhf_lab ARGUMENTS` in a directory.

    Args:
        at: index of the call at which `action` is called, in the run's process.
        record: receives the list of all calls when the run has finished.
        largest_file: limit on file sizes in bytes, beyond which a write fails.
    """
    sys.stdout.flush()
    process = os.fork()
    if process:
        return Run(process, log)
    status = 1
    try:
        _become(directory, log, largest_file)
        calls = _watch(at, action)
        sys.argv = ["rlhf_lab", *arguments]
        try:
            runpy.run_module("rlhf_lab", run_name="__main__", alter_sys=False)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        if record:
            record.write_text(json.dumps(calls))
    except KeyboardInterrupt:
        status = 130
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _become(directory: Path, log: Path, largest_file: int | None) -> None:
    """Prepare this fork to be like a process that a shell has just started."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(directory)
    if largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, resource.RLIM_INFINITY))


def _watch(at: int | None, action: Callable[[Moment], None] | None) -> list[Moment]:
    """Wrap the calls that change files. Return the list of calls so far, which grows."""
    calls: list[Moment] = []

    def reach(what: str, path: Any) -> Moment | None:
        if "outputs" not in Path(path).parts or ".locks" in Path(path).parts:
            return None
        calls.append(Moment(what, Path(path).name))
        return calls[-1] if action is not None and len(calls) - 1 == at else None

    def acting(moment: Moment | None) -> None:
        if moment is not None and action is not None:
            action(moment)

    replace, unlink, append = os.replace, os.unlink, files._append

    def watched_replace(source: Any, target: Any, **more: Any) -> None:
        acting(reach("before the rename", target))
        replace(source, target, **more)
        acting(reach("after the rename", target))

    def watched_unlink(path: Any, **more: Any) -> None:
        if os.path.lexists(path):
            acting(reach("before the removal", path))
        unlink(path, **more)

    def watched_append(path: Path, rows: list[dict[str, Any]]) -> int:
        moment = reach("within a line", path)
        if moment is not None and action is not None:
            text = "".join(json.dumps(row, default=files._encode) + "\n" for row in rows)
            size = path.stat().st_size if path.exists() else 0
            with path.open("a") as handle:
                handle.write(text[: max(1, len(text) * 2 // 3)])
            action(moment)
            os.truncate(path, size)  # the process lives: only a kill leaves a line cut
        end = append(path, rows)
        acting(reach("after the line", path))
        return end

    os.replace, os.unlink, files._append = watched_replace, watched_unlink, watched_append  # type: ignore[assignment]
    return calls
