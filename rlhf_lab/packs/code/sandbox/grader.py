"""Grader that runs hidden tests against code that cannot see them: code and tests run in separate sandboxes.

A common grader executes code and tests in one process and checks the exit status. Code can then pass by exiting with
status 0, by printing the expected output, or by replacing the errors of `assert` or `__eq__`. Here the test process
requests values from the code process. The values arrive as built-in types, and the report starts with a nonce that only
the test process knows. Tests that pass functions, objects or open files to the code are graded `unsupported`. See
docs/design/022-sandbox.md.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rlhf_lab.core.machine import usable_cores
from rlhf_lab.packs.code.sandbox.harness import candidate, plain
from rlhf_lab.packs.code.sandbox.levels import MAIN, SandboxTask
from rlhf_lab.packs.code.sandbox.outcome import Level, ProgramOutcome
from rlhf_lab.packs.code.sandbox.process import SandboxedProcess
from rlhf_lab.packs.code.sandbox.sandbox import Sandbox

HARNESS = Path(__file__).parent / "harness"
CHANNEL_KIB = 16 * 1024
"""Maximum amount of data that each process may send to the other, in KiB."""
REPORT = {"load": str, "messages": list, "unsupported": str, "ended": bool}
"""Entries of the report of the test process, and their types."""
LONGER_S = 5.0
"""Additional time of the test process in seconds, so that it can report a timeout of the code."""
Verdict = Literal[
    "passed", "failed", "error", "timeout", "memory", "disk", "output", "processes", "killed", "unsupported"
]


@dataclass(frozen=True)
class HiddenTests:
    """Hidden tests of a program.

    Attributes:
        tests: test programs, usually assertions; a test passes if it does not raise.
        entry_point: name that the tests get from the code. If empty, they get all names that a test reads and does not
            define.
        setup: program with additional definitions for the tests, such as helper functions of the task.
    """

    tests: tuple[str, ...]
    entry_point: str = ""
    setup: str = ""


@dataclass(frozen=True)
class HiddenTestResult:
    """Result of the hidden tests of a program.

    Attributes:
        status: `passed` if all tests pass; `failed` if a test fails; `error` if the code does not load or exits; the
            name of a limit that it exceeded; `unsupported` if the tests are not Python, or need more than values and
            the standard library.
        passed, total: number of passed tests, and of all tests.
        message: first failure: the line of the test, the error, and the previous call.
        seconds: wall time in seconds.
        cpu_s: processor time of both processes in seconds, except for a process that was killed from outside.
        lost: True if one of its sandboxes exited twice without a report, so that the program counts as failed.
    """

    status: Verdict
    passed: int
    total: int
    message: str
    level: Level
    seconds: float
    cpu_s: float
    lost: bool = False


class ProgramGrader:
    """Grader of programs; each program gets two new sandboxes. It may be shared between threads."""

    def __init__(self, sandbox: Sandbox):
        self.sandbox = sandbox

    def grade(self, code: str, tests: HiddenTests) -> HiddenTestResult:
        """Grade one program. Raises SandboxError if no sandbox can be started."""
        report, tests_outcome, code_outcome = self._run(code, tests)
        grade = _grade(report, tests, tests_outcome, code_outcome)
        if report is None and grade.status == "error":
            # The test process exited by itself. If it does so without any code as well, the tests are at fault.
            report_without_code, *_ = self._run("", tests)
            if report_without_code is None:
                return replace(grade, status="unsupported")
        return grade

    def _run(self, code: str, tests: HiddenTests) -> tuple[dict[str, Any] | None, ProgramOutcome, ProgramOutcome]:
        """Return the report, the outcome of the tests, and the outcome of the code. The report is None if missing."""
        conversation = _Conversation(tests)

        def make_tasks() -> list[SandboxTask]:
            nonlocal conversation  # a retry needs a new nonce and an empty report
            conversation = _Conversation(tests)
            return conversation.tasks(code)

        tests_outcome, code_outcome = self.sandbox.run_retrying(make_tasks)
        return conversation.report, tests_outcome, code_outcome

    def grade_many(self, programs: Sequence[tuple[str, HiddenTests]], *, at_once: int = 0) -> list[HiddenTestResult]:
        """Grade programs in parallel. The results have the order of the programs.

        Args:
            at_once: maximum number of programs at the same time; 0 means one per usable core.
        """
        with ThreadPoolExecutor(at_once or usable_cores()) as pool:
            return list(pool.map(lambda program: self.grade(*program), programs))


class _Conversation:
    """Relay of lines between the two processes. It intercepts the report.

    Output of the code process is passed to the test process unread. Output of the test process is passed to the code
    process, except for the line with the nonce.
    """

    def __init__(self, tests: HiddenTests):
        self.report: dict[str, Any] | None = None
        self._tests = tests
        self._nonce = secrets.token_hex(16)
        self._line = bytearray()
        self._programs: dict[str, SandboxedProcess] = {}

    def tasks(self, code: str) -> list[SandboxTask]:
        """Return both programs. The tests are first, because the other program is stopped when the first one exits."""
        job = {
            "nonce": self._nonce,
            "setup": self._tests.setup,
            "tests": list(self._tests.tests),
            "entry_point": self._tests.entry_point,
        }
        common = {"rlhf_lab/packs/code/sandbox/harness/plain.py": (HARNESS / "plain.py").read_bytes()}
        # surrogatepass: a response may contain lone surrogates
        solution = {candidate.CODE: code.encode("utf-8", "surrogatepass")}
        tests_task = SandboxTask(
            {MAIN: (HARNESS / "tests.py").read_bytes(), **common},
            stdin=plain.dumps(job).encode() + b"\n",
            stays_open=True,
            on_output=self._hear_tests,
            on_start=lambda program: self._programs.update(tests=program),
            output_kib=CHANNEL_KIB,
            longer_s=LONGER_S,
        )
        code_task = SandboxTask(
            {MAIN: (HARNESS / "candidate.py").read_bytes(), **common, **solution},
            stays_open=True,
            on_output=lambda data: self._programs["tests"].feed(data),
            on_start=lambda program: self._programs.update(code=program),
            on_end=lambda: self._programs["tests"].close_stdin(),
            output_kib=CHANNEL_KIB,
        )
        return [tests_task, code_task]

    def _hear_tests(self, data: bytes) -> None:
        # data arrives in arbitrary pieces: complete lines are passed on, and the rest waits for more data
        self._line += data
        *lines, rest = self._line.split(b"\n")
        self._line = bytearray(rest)
        for line in lines:
            if line.startswith(self._nonce.encode()):
                report = bytes(line[len(self._nonce) :])
                self.report = _checked_report(report, len(self._tests.tests))
            else:
                self._programs["code"].feed(bytes(line) + b"\n")


def _checked_report(line: bytes, total: int) -> dict[str, Any] | None:
    """Parse a report; None if it is invalid. It is checked because tests come from data sets and may write anything."""
    try:
        report = plain.loads(line.decode())
    except ValueError:
        return None
    if not isinstance(report, dict) or report.keys() != REPORT.keys():
        return None
    # an exact check, because the report decides the grade
    has_types = all(isinstance(report[name], kind) for name, kind in REPORT.items())
    messages = report["messages"]
    if not has_types or not all(isinstance(message, str) for message in messages):
        return None
    # if the program does not load, no test runs
    is_complete = report["load"] or len(messages) == total
    return report if is_complete else None


def _grade(
    report: dict[str, Any] | None, tests: HiddenTests, tests_outcome: ProgramOutcome, code_outcome: ProgramOutcome
) -> HiddenTestResult:
    total = len(tests.tests)
    messages: list[str] = []
    if report is not None:
        messages = [report["load"]] * total if report["load"] else list(report["messages"])
    lost = tests_outcome.lost or code_outcome.lost
    # a lost sandbox does not matter if a complete report of the tests had arrived before
    is_unknown = bool(lost) and (report is None or bool(report["load"]) or report["ended"])
    status, message = _verdict(report, messages, tests_outcome, code_outcome)
    if is_unknown:
        status, message = "killed", f"the sandbox was lost twice: {lost}"
    return HiddenTestResult(
        status=status,
        passed=messages.count(""),
        total=total,
        message=message,
        level=code_outcome.level,
        seconds=max(tests_outcome.wall_s, code_outcome.wall_s),
        cpu_s=tests_outcome.cpu_s + code_outcome.cpu_s,
        lost=is_unknown,
    )


def _verdict(
    report: dict[str, Any] | None, messages: list[str], tests_outcome: ProgramOutcome, code_outcome: ProgramOutcome
) -> tuple[Verdict, str]:
    """Return the status and the message of a grade."""
    if report is None:
        if tests_outcome.status == "ok" or tests_outcome.status == "error":
            last_line = (tests_outcome.stderr.strip().splitlines() or ["no message"])[-1]
            return "error", f"the test process exited without a report: {last_line[:500]}"
        return tests_outcome.status, "while its tests ran"
    if report["unsupported"]:
        return "unsupported", report["unsupported"]
    first = next((message for message in messages if message), "")
    if not first:
        return "passed", ""
    if not (report["load"] or report["ended"]):
        return "failed", first
    # the program has exited: because of a limit, a signal, or by itself
    status = code_outcome.status
    # exit None: the sandbox stopped the program after the report
    if status == "ok" or (status == "killed" and code_outcome.exit is None):
        return "error", first
    return status, first
