"""Runs hidden tests against code that never sees them: the code in one sandbox, its tests in another.

A usual grader executes the code and its tests in one process and looks at the exit status. Code that ends the process
with status 0, prints what the grader looks for, replaces `assert`'s errors or `__eq__`, then passes. Here the tests'
process asks the code's for values, which arrive as plain data, and reports behind a nonce that only it has. Left out:
tests that pass functions, objects or open files to the code, whose grade is `unsupported`; docs/design/022-sandbox.md.
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
from rlhf_lab.packs.code.sandbox.levels import MAIN, Task
from rlhf_lab.packs.code.sandbox.outcome import Level, Outcome
from rlhf_lab.packs.code.sandbox.process import Program
from rlhf_lab.packs.code.sandbox.sandbox import Sandbox

HARNESS = Path(__file__).parent / "harness"
CHANNEL_KIB = 16 * 1024
"""Most that the two processes say to each other, each."""
REPORT = {"load": str, "messages": list, "unsupported": str, "ended": bool}
"""Entries of the report of the tests' process."""
LONGER_S = 5.0
"""So much longer than the code may its tests take: they have to report that it took too long."""
Verdict = Literal[
    "passed", "failed", "error", "timeout", "memory", "disk", "output", "processes", "killed", "unsupported"
]


@dataclass(frozen=True)
class HiddenTests:
    """Hidden tests.

    Attributes:
        tests: programs, each of which passes unless it raises; asserts, usually.
        entry_point: the name that the tests get from the code; empty: every name that a test reads and does not define.
        setup: a program that defines what the tests need besides, such as helper functions of the task.
    """

    tests: tuple[str, ...]
    entry_point: str = ""
    setup: str = ""


@dataclass(frozen=True)
class Grade:
    """What hidden tests say of a program.

    Attributes:
        status: `passed` all tests; `failed` one of them; `error` the code does not load or ended by itself; a limit
            that it ran into; `unsupported` where its tests need more than values or the standard library, or are not
            Python.
        passed, total: tests.
        message: the first failure: the line of the test, the error, the call before it.
        level: the isolation it was graded under.
        seconds: wall time.
        cpu_s: processor time of both processes; without one that was ended from outside.
        lost: whether one of its sandboxes ended twice without a report, so that it fails unseen.
    """

    status: Verdict
    passed: int
    total: int
    message: str
    level: Level
    seconds: float
    cpu_s: float
    lost: bool = False


class Grader:
    """Grades programs, each in two sandboxes of its own. May be shared between threads."""

    def __init__(self, sandbox: Sandbox):
        self.sandbox = sandbox

    def grade(self, code: str, tests: HiddenTests) -> Grade:
        """Grade one program. Raises SandboxError where the machine can start no sandbox."""
        report, tests_outcome, code_outcome = self._run(code, tests)
        grade = _grade(report, tests, tests_outcome, code_outcome)
        if report is None and grade.status == "error":
            # The tests' process has ended itself. If it also does without any code, the tests are to blame.
            report_without_code, *_ = self._run("", tests)
            if report_without_code is None:
                return replace(grade, status="unsupported")
        return grade

    def _run(self, code: str, tests: HiddenTests) -> tuple[dict[str, Any] | None, Outcome, Outcome]:
        """(report, outcome of the tests, outcome of the code). The report is None if the tests' process wrote none."""
        conversation = _Conversation(tests)

        def make_tasks() -> list[Task]:
            nonlocal conversation
            conversation = _Conversation(tests)
            return conversation.tasks(code)

        tests_outcome, code_outcome = self.sandbox.run_retrying(make_tasks)
        return conversation.report, tests_outcome, code_outcome

    def grade_many(self, programs: Sequence[tuple[str, HiddenTests]], *, at_once: int = 0) -> list[Grade]:
        """Grade programs, some at a time: `at_once`, or 0 for one per usable core. In the order given."""
        with ThreadPoolExecutor(at_once or usable_cores()) as pool:
            return list(pool.map(lambda program: self.grade(*program), programs))


class _Conversation:
    """Carries lines between the two processes, and keeps the report.

    What the code's process says goes to the tests' process unread. What the tests' process says goes the other way, but
    for the line with the nonce.
    """

    def __init__(self, tests: HiddenTests):
        self.report: dict[str, Any] | None = None
        self._tests = tests
        self._nonce = secrets.token_hex(16)
        self._line = bytearray()
        self._programs: dict[str, Program] = {}

    def tasks(self, code: str) -> list[Task]:
        """The two programs; the one with the tests is first, so that its end is the end of both."""
        job = {
            "nonce": self._nonce,
            "setup": self._tests.setup,
            "tests": list(self._tests.tests),
            "entry_point": self._tests.entry_point,
        }
        common = {"rlhf_lab/packs/code/sandbox/harness/plain.py": (HARNESS / "plain.py").read_bytes()}
        solution = {candidate.CODE: code.encode("utf-8", "surrogatepass")}
        tests_task = Task(
            {MAIN: (HARNESS / "tests.py").read_bytes(), **common},
            stdin=plain.dumps(job).encode() + b"\n",
            stays_open=True,
            on_output=self._hear_tests,
            on_start=lambda program: self._programs.update(tests=program),
            output_kib=CHANNEL_KIB,
            longer_s=LONGER_S,
        )
        code_task = Task(
            {MAIN: (HARNESS / "candidate.py").read_bytes(), **common, **solution},
            stays_open=True,
            on_output=lambda data: self._programs["tests"].feed(data),
            on_start=lambda program: self._programs.update(code=program),
            on_end=lambda: self._programs["tests"].close_stdin(),
            output_kib=CHANNEL_KIB,
        )
        return [tests_task, code_task]

    def _hear_tests(self, data: bytes) -> None:
        self._line += data
        *lines, rest = self._line.split(b"\n")
        self._line = bytearray(rest)
        for line in lines:
            if line.startswith(self._nonce.encode()):
                self.report = _checked_report(bytes(line[len(self._nonce) :]), len(self._tests.tests))
            else:
                self._programs["code"].feed(bytes(line) + b"\n")


def _checked_report(line: bytes, total: int) -> dict[str, Any] | None:
    """The report of a line; None for any other value: tests come from data sets, and may write what they like."""
    try:
        report = plain.loads(line.decode())
    except ValueError:
        return None
    if not isinstance(report, dict) or report.keys() != REPORT.keys():
        return None
    has_types = all(isinstance(report[name], kind) for name, kind in REPORT.items())
    messages = report["messages"]
    if not has_types or not all(isinstance(message, str) for message in messages):
        return None
    return report if report["load"] or len(messages) == total else None


def _grade(report: dict[str, Any] | None, tests: HiddenTests, tests_outcome: Outcome, code_outcome: Outcome) -> Grade:
    total = len(tests.tests)
    messages: list[str] = []
    if report is not None:
        messages = [report["load"]] * total if report["load"] else list(report["messages"])
    lost = tests_outcome.lost or code_outcome.lost
    is_unknown = bool(lost) and (report is None or bool(report["load"]) or report["ended"])
    status, message = _verdict(report, messages, tests_outcome, code_outcome)
    if is_unknown:
        status, message = "killed", f"its sandbox was lost twice: {lost}"
    return Grade(
        status=status,
        passed=messages.count(""),
        total=total,
        message=message,
        level=code_outcome.level,
        seconds=max(tests_outcome.wall_s, code_outcome.wall_s),
        cpu_s=tests_outcome.cpu_s + code_outcome.cpu_s,
        lost=is_unknown,
    )


def _last_words(tests_outcome: Outcome) -> str:
    last_line = (tests_outcome.stderr.strip().splitlines() or ["no message"])[-1]
    return f"the tests' process ended without a report: {last_line[:500]}"


def _verdict(
    report: dict[str, Any] | None, messages: list[str], tests_outcome: Outcome, code_outcome: Outcome
) -> tuple[Verdict, str]:
    """(status, message)."""
    if report is None:
        if tests_outcome.status == "ok" or tests_outcome.status == "error":
            return "error", _last_words(tests_outcome)
        return tests_outcome.status, "while its tests ran"
    if report["unsupported"]:
        return "unsupported", report["unsupported"]
    first = next((message for message in messages if message), "")
    if not first:
        return "passed", ""
    if not (report["load"] or report["ended"]):
        return "failed", first
    # the program is gone: by a limit, by a signal, or because it ended itself
    status = code_outcome.status
    if status == "ok" or (status == "killed" and code_outcome.exit is None):  # None: ended from here, after the report
        return "error", first
    return status, first
