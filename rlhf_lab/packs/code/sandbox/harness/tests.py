"""Test process: runs hidden tests and forwards their calls of graded names to the candidate process.

The first line of its input contains the tests and a nonce; each further line is an answer of the candidate. It writes
calls, and one report that starts with the nonce. The candidate process never sees the nonce, and no code of the
candidate runs in this process.
"""

from __future__ import annotations

import ast
import builtins
import os
import random
import sys
import traceback
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any, TextIO

from rlhf_lab.packs.code.sandbox.harness import plain

LONGEST = 300
"""Maximum number of characters of a message, and of a value in it."""
NOT_RAISED = ("StopIteration", "StopAsyncIteration", "GeneratorExit")
"""Errors of the candidate that are raised as CandidateError. Raised as themselves, they would silently end a loop such
as `for value in map(function, inputs)`."""


TOO_LARGE = "its answer is too large for the test process"
NOTICE = "__notice_handled_error__"
"""Name of `CandidateProcess.notice` in the namespace of the tests."""
SETUP_FILE, TEST_FILE = "<setup>", "<test>"
"""File names in tracebacks of the tests."""
DEEPER = 5
"""Factor by which Python's recursion limit is raised while a call is serialised, so that a test can pass on any answer
that could be parsed, at any call depth. A value that is still nested too deeply comes from the test itself."""


class CandidateError(Exception):
    """The candidate exited, or raised an error that is not built-in."""


class CandidateProcess:
    """Proxy of the candidate process, which provides its functions."""

    def __init__(self, answers: TextIO, calls: TextIO):
        self._answers, self._calls = answers, calls
        self.last_call = ""  # last call and its result, for the message of a failed test
        self.last_error: Exception | None = None  # last error that the candidate raised
        self.unsupported = ""  # reason why a test cannot be run for any candidate; empty if there is none
        self.has_finished = False
        # reason why the current test fails even if it accepts any error, such as an invalid answer; None if none
        self.no_answer: str | None = None

    def receive(self) -> dict:
        """Read the next message of the candidate. Raises CandidateError if it is missing or invalid."""
        try:
            line = self._answers.readline()
        except MemoryError:
            self.has_finished = True  # part of the line was read, so the start of the next line is unknown
            raise self._broken(TOO_LARGE) from None
        if not line.endswith("\n"):
            self.has_finished = True
            raise CandidateError("the program exited before it answered")
        try:
            response = plain.loads(line)
        except MemoryError:
            raise self._broken(TOO_LARGE) from None
        except Exception as error:  # the candidate may write anything to this channel
            raise self._broken(text_of(error)) from None
        if not isinstance(response, dict):
            raise self._broken("its answer is not a message")
        return response

    def _broken(self, problem: str) -> CandidateError:
        """Record a problem that fails the test even if it accepts any error. Returns the error to raise."""
        self.no_answer = problem
        return CandidateError(problem)

    def notice(self) -> None:
        """Check the error that a test handles. If it is a MemoryError of this process, the candidate's values are the
        cause, and the test fails.

        Each `except` clause of a test calls this first; see `_NoticeHandled`.
        """
        error = sys.exc_info()[1]
        if isinstance(error, MemoryError) and error is not self.last_error:
            self.no_answer = TOO_LARGE

    def function(self, name: str) -> Callable[..., object]:
        """Return a function that calls the candidate's function of this name."""

        def call(*args: object, **kwargs: object) -> object:
            arguments = list(args)
            limit = sys.getrecursionlimit()
            sys.setrecursionlimit(limit * DEEPER)
            try:
                request = plain.dumps({"name": name, "args": arguments, "kwargs": kwargs})
            except plain.NotJsonValue as error:
                self.unsupported = f"{name} is called with a {error}, which cannot be passed to another process"
                raise CandidateError(self.unsupported) from None
            finally:
                sys.setrecursionlimit(limit)
            self.last_call = f"{name}({', '.join(shown(value) for value in arguments)})"
            print(request, file=self._calls, flush=True)
            try:
                return self._result(arguments)
            except (MemoryError, RecursionError) as error:
                if error is self.last_error:  # raised by the candidate, not by this process
                    raise
                raise self._broken(TOO_LARGE) from None

        call.__name__ = name
        return call

    def _result(self, arguments: list) -> object:
        """Read the result of a call, and update `arguments` in place. Raises the candidate's error."""
        response = self.receive()
        if "error" in response:
            name = text_of(response["error"])
            self.last_call += f" raised {name}"
            self.last_error = _error(name, text_of(response.get("message", "")))
            raise self.last_error
        if "value" not in response:
            raise self._broken(f"it returned a {text_of(response.get('not_plain', 'message'))}, expected plain data")
        after = response.get("args")
        if isinstance(after, list) and len(after) == len(arguments):
            for before, now in zip(arguments, after, strict=True):
                _update(before, now)
        self.last_call += f" returned {shown(response['value'])}"
        return response["value"]


def _update(before: Any, now: Any) -> None:
    """Apply the candidate's change to a mutable argument, for tests of functions that modify it in place."""
    # an argument whose type changed cannot be updated in place
    if type(before) is not type(now) or before == now:
        return
    if isinstance(before, (list, bytearray)):
        before[:] = now
    elif isinstance(before, (dict, set)):
        before.clear()
        before.update(now)


def _error(name: str, message: str) -> Exception:
    """Create the built-in error with this name, so that tests can expect it; CandidateError for other names."""
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception) and name not in NOT_RAISED:
        try:
            return kind(message)
        except TypeError:  # some errors need more arguments, such as UnicodeDecodeError
            return CandidateError(f"{name}: {message}")
    return CandidateError(f"{name}: {message}")


def shown(value: object) -> str:
    """Format a value for a message. Never raises."""
    try:
        text = repr(value)
    except Exception:  # an integer with thousands of digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def text_of(value: object) -> str:
    """Convert a value from a candidate or a test to text. Never raises."""
    try:
        return str(value)
    except Exception:  # an integer with thousands of digits, also within an error: `assert f(1) == 2, f(1)`
        return f"a {type(value).__name__} that cannot be written"


def missing_imports(text: str, file: str) -> set[tuple[str, int]]:
    """Return (file, line) of imports in a test that fail in this process, which only has the standard library.

    This runs before the first answer of the candidate. Later, its answers could fill the memory that an import needs.
    """
    missing: set[tuple[str, int]] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            statement = node
        elif isinstance(node, ast.Call) and _name(node.func) in ("import_module", "__import__") and node.args:
            name = node.args[0]
            if not (isinstance(name, ast.Constant) and isinstance(name.value, str)):
                continue
            statement = ast.Import([ast.alias(name.value)])
        else:
            continue
        module = ast.Module([ast.copy_location(statement, node)], [])
        try:
            exec(compile(ast.fix_missing_locations(module), file, "exec"), {"__name__": "tests"})
        except ImportError:
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            missing.update((file, line) for line in lines)
        except BaseException:  # the module exists but fails; the test may never reach this import
            continue
    return missing


def _name(function: ast.expr) -> str:
    """Return the last part of a function's name."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


class Test:
    """A hidden test."""

    def __init__(self, text: str):
        self.text = text
        self.problem = ""  # reason why the text is not valid Python; empty if it is valid
        self.code: CodeType | None = None  # compiled program; None if there is a problem
        self.names: set[str] = set()  # names that the test reads and does not define
        self.missing: set[tuple[str, int]] = set()  # positions of failing imports; see `missing_imports`
        try:
            self.code = compiled(text, TEST_FILE)
            self.names = names_used(text)
            self.missing = missing_imports(text, TEST_FILE)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the errors that `compile` raises
            self.problem = f"a test is not Python: {type(error).__name__}: {text_of(error)[:LONGEST]}"


def names_used(test: str) -> set[str]:
    """Return the names that a test reads and nothing defines; the candidate provides them. Raises SyntaxError."""
    read: set[str] = set()
    written: set[str] = set()
    for node in ast.walk(ast.parse(test)):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else written).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.ExceptHandler)):
            if node.name:  # an except clause may have no name
                written.add(node.name)
        elif isinstance(node, ast.arg):
            written.add(node.arg)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                written.add((alias.asname or alias.name).partition(".")[0])
    return read - written - set(dir(builtins))


class _NoticeHandled(ast.NodeTransformer):
    """Transformer that adds a call of NOTICE at the start of each `except` clause."""

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.ExceptHandler:
        self.generic_visit(node)
        call = ast.Expr(ast.Call(ast.Name(NOTICE, ast.Load()), [], []))
        node.body.insert(0, ast.copy_location(call, node))
        return node


def compiled(text: str, file: str) -> CodeType:
    """Compile code of the tests so that it calls NOTICE for each error it handles. Raises the errors of `compile`."""
    tree = _NoticeHandled().visit(ast.parse(text))
    return compile(ast.fix_missing_locations(tree), file, "exec")


def set_up(setup: str, defined: dict) -> str:
    """Run the setup of the tests in the namespace `defined`. Returns its problem; empty if there is none."""
    try:
        exec(compiled(setup, SETUP_FILE), defined)
    except BaseException as error:
        return f"the setup of the tests does not run: {type(error).__name__}: {text_of(error)[:LONGEST]}"
    return ""


def run_test(
    test: Test, defined: dict, entry_point: str, candidate: CandidateProcess, missing: Iterable[tuple[str, int]] = ()
) -> str:
    """Run one test. Returns the failure; empty if it passed. A fault of the test itself sets `candidate.unsupported`.

    Args:
        missing: positions of failing imports in the setup; see `missing_imports`.
    """
    candidate.last_call, candidate.no_answer = "", None
    if test.code is None:
        candidate.unsupported = test.problem
        return test.problem
    # a copy, so that a test cannot change the names of later tests
    names = dict(defined)
    # without an entry point, all undefined names come from the candidate
    requested = {entry_point} if entry_point else test.names - set(defined)
    names.update({name: candidate.function(name) for name in requested})
    try:
        exec(test.code, names)
    except BaseException as error:
        if isinstance(error, ImportError) and _place(error) in {*missing, *test.missing}:
            problem = f"a test does not import: {text_of(error)[:LONGEST]}"
            candidate.unsupported = f"{problem}; the sandbox only has the standard library"
        return _message(error, test.text, candidate)
    if candidate.has_finished:  # a test that expects any error would accept the exit as one
        return f"the program exited; {candidate.last_call}"
    if candidate.no_answer is not None:
        return f"{candidate.no_answer}; {candidate.last_call}"
    return ""


def _place(error: BaseException) -> tuple[str, int | None]:
    """Return the file and line of the tests at which an error was first raised.

    For an error that a test has collected and raises later, this is the line of the original call.
    """
    frames = traceback.extract_tb(error.__traceback__)
    positions = [(frame.filename, frame.lineno) for frame in frames if frame.filename in (SETUP_FILE, TEST_FILE)]
    return positions[-1] if positions else ("", None)


def _message(error: BaseException, test: str, candidate: CandidateProcess) -> str:
    """Format a failure: the line of the test, the error, and the previous call."""
    lines = test.splitlines()
    frames = traceback.extract_tb(error.__traceback__)
    positions = [frame.lineno for frame in frames if frame.filename == TEST_FILE]
    parts = []
    if positions and positions[-1] and positions[-1] <= len(lines):
        parts.append(lines[positions[-1] - 1].strip()[:LONGEST])
    text = text_of(error)[:LONGEST]
    if not isinstance(error, AssertionError) or text:
        parts.append(f"{type(error).__name__}: {text}")
    if candidate.last_call:
        parts.append(candidate.last_call)
    return "; ".join(parts) or type(error).__name__


def main() -> None:
    # the channel moves to other descriptors, so that `input` and `print` of a test cannot disturb it
    answers = os.fdopen(os.dup(0), "r", encoding="ascii", errors="replace")
    calls = os.fdopen(os.dup(1), "w", encoding="ascii")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    job: Any = plain.loads(answers.readline())
    tests = [Test(text) for text in job["tests"]]
    try:
        missing = missing_imports(job["setup"], SETUP_FILE)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # `set_up` reports it
        missing = set()
    candidate = CandidateProcess(answers, calls)
    report: dict[str, Any] = {"load": "", "messages": [], "unsupported": "", "ended": False}
    try:
        problem = candidate.receive()
        if problem:  # the keys may be missing, because the code can write a message itself
            name, message = text_of(problem.get("error", "no code")), text_of(problem.get("message", problem))
            report["load"] = f"{name}: {message}"[:LONGEST]
    except CandidateError as error:
        report["load"] = text_of(error)
    if not report["load"]:
        random.seed(0)  # makes tests that draw random numbers without a seed reproducible
        defined = {"__name__": "tests", NOTICE: candidate.notice}
        candidate.unsupported = set_up(job["setup"], defined)
        for test in tests:
            if candidate.unsupported:
                report["messages"].append(candidate.unsupported)
            elif candidate.has_finished:
                report["messages"].append("the program exited in an earlier test")
            else:
                report["messages"].append(run_test(test, defined, job["entry_point"], candidate, missing))
        report["unsupported"] = candidate.unsupported
    report["ended"] = candidate.has_finished
    print(job["nonce"] + plain.dumps(report), file=calls, flush=True)
    sys.stdout.flush()
    os._exit(0)  # threads and exit handlers of a test must not run any more


if __name__ == "__main__":
    main()
