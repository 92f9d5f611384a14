"""`Sandbox.run`: a program and its input go in, what came of it comes out."""

from __future__ import annotations

import ast
import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import Any

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.machine import usable_cores
from rlhf_lab.packs.code.sandbox import container, groups, levels
from rlhf_lab.packs.code.sandbox.jail.launch import STARTED
from rlhf_lab.packs.code.sandbox.levels import AUTOMATIC, MAIN, Task
from rlhf_lab.packs.code.sandbox.outcome import Level, Limits, Outcome, SandboxError, SandboxUnavailable, Status
from rlhf_lab.packs.code.sandbox.process import PATIENCE_S, Program, supervise
from rlhf_lab.packs.code.sandbox.settings import Sandboxing

HELLO = "import threading; t = threading.Thread(target=print, args=('hello',)); t.start(); t.join()"
"""The program with which a level is tried."""
LAST_WORDS: tuple[tuple[str, Status], ...] = (
    ("MemoryError", "memory"),
    ("OSError: [Errno 28] No space left on device", "disk"),
    ("OSError: [Errno 27] File too large", "disk"),
    ("BlockingIOError: [Errno 11]", "processes"),
    ("RuntimeError: can't start new thread", "processes"),
)
"""How the last line of an error begins → the limit that the program ran into."""
SIGKILL, SIGXCPU = 9, 24
RETRY_PAUSE_S = 0.5
"""Pause before a sandbox that failed is made again: what kept it from starting, such as a lack of memory, may pass."""

_trying = threading.Lock()
_tried: dict[tuple[Level, str], str] = {}


class Sandbox:
    """Runs programs at one level of isolation, each in a sandbox of its own. May be shared between threads.

    Args:
        settings: the section `sandbox` of a config.

    Attributes:
        limits: what each program may use.
    """

    def __init__(self, settings: Sandboxing | None = None):
        self.settings = settings or Sandboxing()
        self.limits = limits_of(self.settings)
        self._level: Level | None = None

    @property
    def level(self) -> Level:
        """The level that programs run at; the first use tries it. Raises SandboxUnavailable."""
        if self._level is None:
            self._level = choose_level(self.settings)
        return self._level

    def run(
        self, code: str, stdin: str = "", files: Mapping[str, bytes] | None = None, *, keep: bool = False
    ) -> Outcome:
        """Run a program.

        Args:
            code: Python; standard library only.
            stdin: what it reads.
            files: path in its folder → content, beside the program itself, which is `main.py`.
            keep: give back the files that it leaves, `Outcome.files`: the next run of the same task takes them in.

        Raises:
            ConfigError: a path leaves the folder.
            SandboxUnavailable, SandboxError: the machine cannot run it.
        """
        task = Task(
            checked_files({**(files or {}), MAIN: code.encode("utf-8", "surrogatepass")}), stdin.encode(), keep=keep
        )
        return self.run_retrying(lambda: [task])[0]

    def run_many(self, codes: Sequence[str], *, at_once: int = 0) -> list[Outcome]:
        """Run programs, some at a time: `at_once`, or 0 for one per usable core. In the order given."""
        with ThreadPoolExecutor(at_once or usable_cores()) as pool:
            return list(pool.map(self.run, codes))

    def run_retrying(self, make_tasks: Callable[[], Sequence[Task]], level: Level | None = None) -> list[Outcome]:
        """Run programs together, and once more if a sandbox could not be started or was lost.

        Args:
            make_tasks: called for each attempt.

        Returns:
            The outcomes; one that was lost twice says why in `Outcome.lost`.

        Raises:
            SandboxUnavailable, SandboxError: a sandbox could not be started twice, so that nothing is known of any
                program.
        """
        level = level or self.level
        with contextlib.suppress(OSError):  # SandboxError is one, and so is a fork that the machine refuses
            outcomes = self.run_together(make_tasks(), level)
            if not any(outcome.lost for outcome in outcomes):
                return outcomes
        time.sleep(RETRY_PAUSE_S)
        return self.run_together(make_tasks(), level)

    def run_together(self, tasks: Sequence[Task], level: Level | None = None) -> list[Outcome]:
        """Run programs at the same time, each in its own sandbox; when the first ends, the others are ended.

        A task may feed another one: see `Task.on_output` and `grader.py`. Raises SandboxError where one does not start.
        """
        level = level or self.level
        with contextlib.ExitStack() as stack:
            running = [self._start(task, level, stack) for task in tasks]
            for task, (program, _) in zip(tasks, running, strict=True):
                if task.on_start:
                    task.on_start(program)
            supervise([program for program, _ in running])
            return [_outcome(program, group, level) for program, group in running]

    def _start(self, task: Task, level: Level, stack: contextlib.ExitStack) -> tuple[Program, groups.Group | None]:
        if level == "container":
            program = container.start(task, self.limits, self.settings.image)
            stack.callback(program.abandon)
            return program, None
        group = groups.create(self.limits)
        if group:
            stack.callback(group.remove)
        program, folder = levels.start(task, self.limits, level, group)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.callback(program.abandon)
        return program, group


def limits_of(settings: Sandboxing) -> Limits:
    return Limits(
        wall_s=settings.timeout_s,
        cpu_s=settings.timeout_s,
        memory_mib=settings.memory_mib,
        disk_mib=settings.disk_mib,
        processes=settings.processes,
        output_kib=settings.output_kib,
    )


def checked_files(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files, if all their paths stay in the folder. Raises ConfigError."""
    for name in files:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
            raise ConfigError(f"file {name!r} of a program leaves its folder; write a relative path without '..'")
    return dict(files)


def choose_level(settings: Sandboxing) -> Level:
    """The level that the settings ask for, tried once per process. Raises SandboxUnavailable where it does not work."""
    wanted = AUTOMATIC if settings.level == "auto" else (settings.level,)
    reasons = []
    for level in wanted:
        reason = why_not(level, settings.image)
        if not reason:
            return level
        reasons.append(f"{level}: {reason}")
    raise SandboxUnavailable(
        f"sandbox.level={settings.level} does not work on this machine. {'; '.join(reasons)}. "
        "sandbox.level=rlimits runs programs with limits alone: they read your files and use your network; choose it "
        "only for code that you would run yourself"
    )


def why_not(level: Level, image: str = Sandboxing.image) -> str:
    """Why a level does not work here; empty where it does. Runs a small program, once per process and level."""
    with _trying:
        key = (level, image if level == "container" else "")
        if key not in _tried:
            _tried[key] = _try(level, image)
        return _tried[key]


def _try(level: Level, image: str) -> str:
    if level == "container" and container.engine() is None:
        return f"neither {' nor '.join(container.ENGINES)} is installed"
    sandbox = Sandbox(Sandboxing(image=image, timeout_s=30.0))
    try:
        outcome = sandbox.run_together([Task({MAIN: HELLO.encode()})], level)[0]
    except SandboxError as error:
        return str(error)
    if outcome.stdout != "hello\n":
        lines = outcome.stderr.strip().splitlines() or [f"exit {outcome.exit}"]
        return f"a trial ended with {outcome.status}: {lines[-1]}"
    return ""


def _outcome(program: Program, group: groups.Group | None, level: Level) -> Outcome:
    """What came of a program that has ended. Raises SandboxError where it was never started."""
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
        lost = f"the launcher did not end within {PATIENCE_S:.0f} s of being told to"
    elif not (report or program.is_stopped or for_memory):
        status = program.process.returncode
        if not program.report.startswith(STARTED):
            raise SandboxError(f"the launcher of a sandbox ended with exit status {status}: {stderr.strip()[-500:]}")
        lost = f"the launcher ended with exit status {status}, without a report"
    code = None if program.broke else report.get("code")
    files, position = {}, 0
    for name, length in report.get("files", []):
        files[name] = contents[position : position + length]
        position += length
    return Outcome(
        status="disk" if report.get("disk_full") else _status(program, code, for_memory, stderr),
        exit=code,
        stdout=program.stdout.decode("utf-8", "replace"),
        stderr=stderr,
        wall_s=program.wall_s,
        cpu_s=report.get("cpu_s", 0.0),
        level=level,
        files=files,
        files_cut=report.get("files_cut", False),
        lost=lost,
    )


def _container_report(program: Program, stderr: str) -> tuple[dict[str, Any], str]:
    """A report like a launcher's, and the program's own stderr. Raises SandboxError where the program did not start."""
    engine_said, started, own = stderr.partition(container.STARTED)
    status = program.process.returncode
    if not started and (program.broke or not program.is_stopped):
        reason = engine_said.strip()[-500:] or program.broke or "no message"
        raise SandboxError(f"the container of a program did not start, exit {status}: {reason}")
    code = container.exit_code(status)
    if code != -SIGKILL:
        return {"code": code}, own
    # not ended from here: by the kernel, for the container's memory, or by itself
    return ({} if program.is_stopped else {"code": code, "memory": True}), own


def _read_report(program: Program) -> tuple[dict[str, Any], bytes]:
    """The launcher's report and the bytes after it; empty where it was ended before it could write one."""
    line, _, contents = bytes(program.report).removeprefix(STARTED).partition(b"\n")
    try:
        return ast.literal_eval(line.decode()), contents
    except (ValueError, SyntaxError):
        return {}, b""


def _status(program: Program, code: int | None, for_memory: bool, stderr: str) -> Status:
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
    lines = stderr.strip().splitlines() or [""]
    if stderr.count("Traceback (most recent call last)") > 1:
        # many processes have failed at once: the last line may be in the middle of what another one says
        said = "\n".join(lines)
        return next((status for words, status in LAST_WORDS if words in said), "error")
    return next((status for words, status in LAST_WORDS if lines[-1].startswith(words)), "error")
