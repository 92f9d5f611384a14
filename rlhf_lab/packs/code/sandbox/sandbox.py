"""Sandbox that runs a program with its input and returns its outcome (`Sandbox.run`)."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import Any

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.machine import usable_cores
from rlhf_lab.core.text import is_well_formed, well_formed
from rlhf_lab.packs.code.sandbox import container, groups, levels
from rlhf_lab.packs.code.sandbox.jail.launch import STARTED
from rlhf_lab.packs.code.sandbox.levels import AUTOMATIC, MAIN, SandboxTask
from rlhf_lab.packs.code.sandbox.outcome import (
    Level,
    ProgramLimits,
    ProgramOutcome,
    SandboxError,
    SandboxUnavailable,
    Status,
)
from rlhf_lab.packs.code.sandbox.process import PATIENCE_S, SandboxedProcess, supervise
from rlhf_lab.packs.code.sandbox.settings import Sandboxing

HELLO = "import threading; t = threading.Thread(target=print, args=('hello',)); t.start(); t.join()"
"""Program that tests a level. It starts a thread, because a wrong filter of system calls can prevent threads."""
LAST_WORDS: tuple[tuple[str, Status], ...] = (
    ("MemoryError", "memory"),
    ("OSError: [Errno 28] No space left on device", "disk"),
    ("OSError: [Errno 27] File too large", "disk"),
    ("BlockingIOError: [Errno 11]", "processes"),
    ("RuntimeError: can't start new thread", "processes"),
)
"""(start of the last line of a program's error message, limit that the program has therefore exceeded)."""
SIGKILL, SIGXCPU = 9, 24
REPORT: dict[str, tuple[type, ...]] = {
    "code": (int,),
    "cpu_s": (int, float),
    "memory": (bool,),
    "files": (list,),
    "files_cut": (bool,),
    "failed": (str,),
    "disk_full": (bool,),
    "bad_tree": (str,),
}
"""Entries of a launcher's report and their types. All entries are optional."""
BEFORE_START = ("failed", "disk_full", "bad_tree")
"""Entries that explain why a program was not started. After its start, only the program itself could have written them,
so they are invalid then."""
RETRY_PAUSE_S = 0.5
"""Pause in seconds before a failed sandbox is retried, because the cause may be temporary, such as a lack of memory."""

_trying = threading.Lock()
_tried: dict[tuple[Level, str], str] = {}


class Sandbox:
    """Runner of programs at one level of isolation; each program gets a new sandbox. It may be shared between threads.

    Args:
        settings: section `sandbox` of a config.

    Attributes:
        limits: resource limits of each program.
    """

    def __init__(self, settings: Sandboxing | None = None):
        self.settings = settings = settings or Sandboxing()
        self.limits = ProgramLimits(
            wall_s=settings.timeout_s,
            cpu_s=settings.timeout_s,
            memory_mib=settings.memory_mib,
            disk_mib=settings.disk_mib,
            processes=settings.processes,
            output_kib=settings.output_kib,
        )
        self._level: Level | None = None

    @property
    def level(self) -> Level:
        """Level of isolation; the first use tests it. Raises SandboxUnavailable if it does not work."""
        if self._level is None:
            self._level = choose_level(self.settings)
        return self._level

    def run(
        self, code: str, stdin: str = "", files: Mapping[str, bytes] | None = None, *, keep: bool = False
    ) -> ProgramOutcome:
        """Run a program.

        Args:
            code: Python code that only uses the standard library.
            stdin: input of the program.
            files: contents of additional files in its directory by path; the program itself is `main.py`.
            keep: True to return the files after the run as `ProgramOutcome.files`, for the next run of the same task.
                See `ProgramOutcome.next_files`.

        Raises:
            ConfigError: a path leaves the directory, or is below the program itself.
            SandboxUnavailable, SandboxError: the machine cannot run the program.
        """
        # a lone surrogate, which a model may write, has no UTF-8; Python then reports a syntax error in the program
        main = code.encode("utf-8", "surrogatepass")
        contents = checked_files({**(files or {}), MAIN: main})
        task = SandboxTask(contents, well_formed(stdin).encode(), keep=keep)
        level = choose_level(self.settings, keep=True) if keep else self.level
        return self.run_retrying(lambda: [task], level)[0]

    def run_many(self, codes: Sequence[str], *, at_once: int = 0) -> list[ProgramOutcome]:
        """Run programs in parallel. The outcomes have the order of the programs.

        Args:
            at_once: maximum number of programs at the same time; 0 means one per usable core.
        """
        with ThreadPoolExecutor(at_once or usable_cores()) as pool:
            return list(pool.map(self.run, codes))

    def run_retrying(
        self, make_tasks: Callable[[], Sequence[SandboxTask]], level: Level | None = None
    ) -> list[ProgramOutcome]:
        """Run programs together. Repeat once if a sandbox could not be started or was lost.

        Args:
            make_tasks: function that creates the tasks of each attempt.

        Returns:
            The outcomes. `ProgramOutcome.lost` has the reason if a program was lost twice.

        Raises:
            SandboxUnavailable, SandboxError: a sandbox could not be started twice.
        """
        level = level or self.level
        with contextlib.suppress(OSError):  # includes SandboxError, and a failed fork
            outcomes = self.run_together(make_tasks(), level)
            if not any(outcome.lost for outcome in outcomes):
                return outcomes
        time.sleep(RETRY_PAUSE_S)
        return self.run_together(make_tasks(), level)

    def run_together(self, tasks: Sequence[SandboxTask], level: Level | None = None) -> list[ProgramOutcome]:
        """Run programs at the same time, each in its own sandbox. When the first one exits, the others are stopped.

        A task may send data to another one; see `SandboxTask.on_output` and `grader.py`. Raises SandboxError if a
        program cannot be started.
        """
        level = level or self.level
        with contextlib.ExitStack() as stack:
            # all programs are started before any output is read, because they may send data to each other
            running = [self._start(task, level, stack) for task in tasks]
            for task, (program, _) in zip(tasks, running, strict=True):
                if task.on_start:
                    task.on_start(program)
            supervise([program for program, _ in running])
            # read before the stack removes the groups, which know about kills for memory
            return [_outcome(program, group, level) for program, group in running]

    def _start(
        self, task: SandboxTask, level: Level, stack: contextlib.ExitStack
    ) -> tuple[SandboxedProcess, groups.ControlGroup | None]:
        # the stack runs callbacks in reverse: first the program is stopped, then directory and group are removed
        if level == "container":
            program = container.start(task, self.limits, self.settings.image)
            stack.callback(program.abandon)
            return program, None
        group = groups.create(self.limits)
        if group:
            stack.callback(group.remove)
        program, directory = levels.start(task, self.limits, level, group)
        if directory:
            stack.callback(_remove, directory)
        stack.callback(program.abandon)
        return program, group


def _remove(directory: str) -> None:
    """Remove a directory tree. `shutil.rmtree` is recursive, and a program can nest thousands of directories."""
    subprocess.run(["rm", "-rf", "--", directory], stderr=subprocess.DEVNULL)


def checked_files(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files. Raises ConfigError if a path leaves the directory or conflicts with the program."""
    for name in files:
        if not is_inside(name):
            raise ConfigError(
                f"file {name!r} of a program is outside its directory or not a file name; write a relative path in "
                "UTF-8 without '..'"
            )
        if PurePosixPath(name).parts[0] == MAIN and name != MAIN:
            raise ConfigError(f"file {name!r} of a program is below {MAIN}, which is the program itself; rename it")
    return dict(files)


def is_inside(name: str) -> bool:
    """Return True if a path names a file below the directory that it is relative to."""
    path = PurePosixPath(name)
    is_name = "\0" not in name and is_well_formed(name)
    return is_name and bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def choose_level(settings: Sandboxing, *, keep: bool = False) -> Level:
    """Return the level for the settings. It is tested once per process. Raises SandboxUnavailable if none works.

    Args:
        keep: True for a program whose files are returned, which `container` cannot do.
    """
    requested = AUTOMATIC if settings.level == "auto" else (settings.level,)
    reasons = []
    for level in requested:
        is_without_files = keep and level == "container"
        reason = "it returns no files, which this program needs" if is_without_files else why_not(level, settings.image)
        if not reason:
            return level
        reasons.append(f"{level}: {reason}")
    raise SandboxUnavailable(
        f"sandbox.level={settings.level} does not work here. {'; '.join(reasons)}. "
        "sandbox.level=rlimits only sets limits: programs can read your files and use your network, so choose it only "
        "for code that you would run yourself"
    )


def why_not(level: Level, image: str = Sandboxing.image) -> str:
    """Return why a level does not work on this machine; empty if it works. Runs a small program once per process."""
    with _trying:  # one thread at a time, so that parallel callers do not test the same level twice
        key = (level, image if level == "container" else "")
        if key not in _tried:
            _tried[key] = _try(level, image)
        return _tried[key]


def _try(level: Level, image: str) -> str:
    if level == "container" and container.engine() is None:
        return f"neither {' nor '.join(container.ENGINES)} is installed"
    sandbox = Sandbox(Sandboxing(image=image, timeout_s=30.0))
    try:
        outcome = sandbox.run_together([SandboxTask({MAIN: HELLO.encode()})], level)[0]
    except SandboxError as error:
        return str(error)
    if outcome.stdout != "hello\n":
        lines = outcome.stderr.strip().splitlines() or [f"exit {outcome.exit}"]
        return f"a test program exited with status {outcome.status}: {lines[-1]}"
    return ""


def _outcome(program: SandboxedProcess, group: groups.ControlGroup | None, level: Level) -> ProgramOutcome:
    """Return the outcome of a program that has exited. Raises SandboxError if it was never started."""
    stderr = program.stderr.decode("utf-8", "replace")
    contents = b""
    if level == "container":
        report, stderr = _container_report(program, stderr)
    else:
        report, contents = _read_report(program)
    if "failed" in report:
        raise SandboxError(levels.problem_of(report["failed"]))
    for_memory = report.get("memory", False) or (group is not None and group.killed_for_memory())
    lost = ""
    if program.is_hung:
        lost = f"the launcher did not exit within {PATIENCE_S:.0f} s after it was stopped"
    elif not (report or program.is_stopped or for_memory):
        finished = f"exited with status {program.process.returncode}"
        # without the marker the program has not run, so the cause is the machine and not the program
        if not program.report.startswith(STARTED):
            raise SandboxError(f"the launcher of a sandbox {finished}: {stderr.strip()[-500:]}")
        lost = f"the launcher {finished} without a report"
    code = None if program.broke else report.get("code")
    status = _status(program, code, for_memory, stderr)
    # these two entries replace the outcome of a program that never started
    if "disk_full" in report:
        status = "disk"
    elif "bad_tree" in report:
        status = "error"
        stderr = f"the program was not started, because its files cannot be written: {report['bad_tree']}\n"
    return ProgramOutcome(
        status=status,
        exit=code,
        stdout=program.stdout.decode("utf-8", "replace"),
        stderr=stderr,
        wall_s=program.wall_s,
        cpu_s=report.get("cpu_s", 0.0),
        level=level,
        files=_split(contents, report["files"]) if "files" in report else None,
        files_cut=report.get("files_cut", False),
        lost=lost,
    )


def _split(contents: bytes, files: list[tuple[str, int]]) -> dict[str, bytes]:
    """Split concatenated contents of files. Returns the contents by path."""
    split, position = {}, 0
    for name, length in files:
        split[name] = contents[position : position + length]
        position += length
    return split


def _container_report(program: SandboxedProcess, stderr: str) -> tuple[dict[str, Any], str]:
    """Return a container's result in the form of a launcher's report, and the program's stderr.

    Raises SandboxError if the container did not start.
    """
    engine_output, started, own = stderr.partition(container.STARTED)
    status = program.process.returncode
    if not started and (program.broke or not program.is_stopped):
        reason = engine_output.strip()[-500:] or program.broke or "no message"
        raise SandboxError(f"the container of a program did not start (exit status {status}): {reason}")
    code = container.exit_code(status)
    if code != -SIGKILL:
        return {"code": code}, own
    # if this process did not stop it, the kernel killed it for the container's memory, or it killed itself
    return ({} if program.is_stopped else {"code": code, "memory": True}), own


def _read_report(program: SandboxedProcess) -> tuple[dict[str, Any], bytes]:
    """Return the launcher's report and the bytes after it; both are empty if there is no valid report.

    At level `rlimits` a program of root can write to the launcher's pipe, so the report is validated.
    """
    line, _, contents = bytes(program.report).removeprefix(STARTED).partition(b"\n")
    try:
        report = json.loads(line)
    except (ValueError, RecursionError):
        return {}, b""
    may_fail = not program.report.startswith(STARTED)
    if not _is_report(report, len(contents), may_fail):
        return {}, b""
    return report, contents


def _is_report(report: Any, length: int, may_fail: bool) -> bool:
    """Return True if a value is a valid report and the total size of its files is `length` bytes.

    Args:
        may_fail: True if it was written before the program's start, so that it may contain `BEFORE_START` entries.
    """
    if not isinstance(report, dict):
        return False
    for name, value in report.items():
        # exact types, because bool is a subclass of int
        if type(value) not in REPORT.get(name, ()) or (name in BEFORE_START and not may_fail):
            return False
    files = report.get("files", [])
    total = 0
    for file in files:
        if not isinstance(file, list) or len(file) != 2:
            return False
        name, size = file
        if type(name) is not str or not is_inside(name) or type(size) is not int or size < 0:
            return False
        total += size
    cpu_s = report.get("cpu_s", 0.0)
    return math.isfinite(cpu_s) and cpu_s >= 0 and total == length


def _status(program: SandboxedProcess, code: int | None, for_memory: bool, stderr: str) -> Status:
    if program.broke:
        return program.broke
    if for_memory:
        return "memory"
    if code == 0:
        return "ok"
    if code == -SIGXCPU:
        return "timeout"
    if code is None or code < 0:
        return "killed"
    # the program exited by itself: its last error message may name a limit
    lines = stderr.strip().splitlines() or [""]
    # several processes failed at the same time, so their messages may be interleaved
    is_interleaved = stderr.count("Traceback (most recent call last)") > 1
    for words, status in LAST_WORDS:
        if lines[-1].startswith(words) or (is_interleaved and words in stderr):
            return status
    return "error"
