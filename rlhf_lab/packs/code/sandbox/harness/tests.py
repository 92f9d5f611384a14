"""The tests' process: runs hidden tests, whose calls of the graded names go to the candidate's process.

Its first line of input has the tests and a nonce; every further line is an answer of the candidate's. What it writes
are calls, and one report that begins with the nonce. The candidate's process never sees the nonce, and nothing that the
candidate wrote runs in this one.
"""

from __future__ import annotations

import ast
import builtins
import os
import random
import sys
import traceback
from collections.abc import Callable
from types import CodeType
from typing import Any, TextIO

from rlhf_lab.packs.code.sandbox.harness import plain

LONGEST = 300
"""Characters of a message, and of a value in it."""
NOT_RAISED = ("StopIteration", "StopAsyncIteration", "GeneratorExit")
"""Errors that would end a loop of a test early and silently: `for value in map(function, inputs)`."""


TOO_LARGE = "its answer is too large for the tests' process"
NOTICE = "__notice_handled_error__"
"""Name of `Candidate.notice` in the tests."""


class CandidateError(Exception):
    """The candidate ended, or raised something that is no built-in error."""


class Candidate:
    """The other process, as functions.

    Attributes:
        last_call: of the message of a failed test.
        last_error: that a call of it raised.
        unsupported: why a test cannot be run at all, whatever the candidate; empty if all could.
        has_ended: whether the process is gone.
        no_answer: why the latest test fails whatever error it accepts, such as that something else than plain data came
            back; None where nothing is wrong.
    """

    def __init__(self, answers: TextIO, calls: TextIO):
        self._answers, self._calls = answers, calls
        self.last_call = ""
        self.last_error: Exception | None = None
        self.unsupported = ""
        self.has_ended = False
        self.no_answer: str | None = None

    def receive(self) -> dict:
        try:
            line = self._answers.readline()
        except MemoryError:
            self.has_ended = True  # a part of the line is read, and nobody knows where the next one begins
            raise self._broken(TOO_LARGE) from None
        if not line.endswith("\n"):
            self.has_ended = True
            raise CandidateError("the program ended before it had answered")
        try:
            reply = plain.loads(line)
        except MemoryError:
            raise self._broken(TOO_LARGE) from None
        except Exception as error:  # it may write anything on this channel
            raise self._broken(text_of(error)) from None
        if not isinstance(reply, dict):
            raise self._broken("its answer is no message")
        return reply

    def _broken(self, problem: str) -> CandidateError:
        """An error that the test did not ask for: it fails also where the test accepts any error."""
        self.no_answer = problem
        return CandidateError(problem)

    def notice(self) -> None:
        """Called where a test handles an error: if its memory ran out, the candidate's values have filled it."""
        error = sys.exc_info()[1]
        if isinstance(error, MemoryError) and error is not self.last_error:
            self.no_answer = TOO_LARGE

    def function(self, name: str) -> Callable[..., object]:
        """A function that asks the other process."""

        def call(*args: object, **kwargs: object) -> object:
            arguments = list(args)
            try:
                request = plain.dumps({"name": name, "args": arguments, "kwargs": kwargs})
            except plain.NotPlain as error:
                self.unsupported = f"{name} is called with a {error}, which cannot be passed to another process"
                raise CandidateError(self.unsupported) from None
            self.last_call = f"{name}({', '.join(shown(value) for value in arguments)})"
            print(request, file=self._calls, flush=True)
            try:
                return self._result(arguments)
            except (MemoryError, RecursionError) as error:
                if error is self.last_error:  # the candidate's own
                    raise
                raise self._broken(TOO_LARGE) from None

        call.__name__ = name
        return call

    def _result(self, arguments: list) -> object:
        reply = self.receive()
        if "error" in reply:
            name = text_of(reply["error"])
            self.last_call += f" raised {name}"
            self.last_error = _error(name, text_of(reply.get("message", "")))
            raise self.last_error
        if "value" not in reply:
            raise self._broken(f"it returned a {text_of(reply.get('not_plain', 'message'))}, expected plain data")
        after = reply.get("args")
        if isinstance(after, list) and len(after) == len(arguments):
            for before, now in zip(arguments, after, strict=True):
                _update(before, now)
        self.last_call += f" returned {shown(reply['value'])}"
        return reply["value"]


def _update(before: Any, now: Any) -> None:
    """Change a mutable argument as the candidate did, for tests of functions that work in place."""
    if type(before) is not type(now) or before == now:
        return
    if isinstance(before, (list, bytearray)):
        before[:] = now
    elif isinstance(before, (dict, set)):
        before.clear()
        before.update(now)


def _error(name: str, message: str) -> Exception:
    """The built-in error of a name, so that tests can expect it."""
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception) and name not in NOT_RAISED:
        try:
            return kind(message)
        except TypeError:  # UnicodeDecodeError takes five arguments
            return CandidateError(f"{name}: {message}")
    return CandidateError(f"{name}: {message}")


def shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # an integer of thousands of digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def text_of(value: object) -> str:
    """`str` of what came from a candidate or a test, whatever it is made of. Never raises."""
    try:
        return str(value)
    except Exception:  # an integer of thousands of digits, also within an error: `assert f(1) == 2, f(1)`
        return f"a {type(value).__name__} that cannot be written"


def asked_names(test: str, defined: dict) -> set[str]:
    """Names that a test reads and nobody defines: these are the candidate's. Raises SyntaxError."""
    read: set[str] = set()
    written: set[str] = set()
    for node in ast.walk(ast.parse(test)):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else written).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.ExceptHandler)):
            if node.name:  # an except clause may name nothing
                written.add(node.name)
        elif isinstance(node, ast.arg):
            written.add(node.arg)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                written.add((alias.asname or alias.name).partition(".")[0])
    return read - written - set(defined) - set(dir(builtins))


class _NoticeHandled(ast.NodeTransformer):
    """Adds a call of NOTICE to the beginning of each `except` clause."""

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.ExceptHandler:
        self.generic_visit(node)
        call = ast.Expr(ast.Call(ast.Name(NOTICE, ast.Load()), [], []))
        node.body.insert(0, ast.copy_location(call, node))
        return node


def compiled(text: str, file: str) -> CodeType:
    """Code of the tests, which calls NOTICE for each error that it handles. Raises what `compile` raises."""
    tree = _NoticeHandled().visit(ast.parse(text))
    return compile(ast.fix_missing_locations(tree), file, "exec")


def set_up(setup: str, defined: dict) -> str:
    """Run what the tests need besides, in `defined`; what is wrong with it, empty if nothing."""
    try:
        exec(compiled(setup, "<setup>"), defined)
    except BaseException as error:
        return f"the setup of the tests does not run: {type(error).__name__}: {text_of(error)[:LONGEST]}"
    return ""


def run_test(test: str, defined: dict, entry_point: str, candidate: Candidate) -> str:
    """Run one test; what went wrong, empty if it passed. What is wrong with the test itself is `unsupported`."""
    names = dict(defined)
    candidate.last_call, candidate.no_answer = "", None
    try:
        program = compiled(test, "<test>")
        asked = {entry_point} if entry_point else asked_names(test, defined)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # all that `compile` raises
        candidate.unsupported = f"a test is not Python: {type(error).__name__}: {text_of(error)[:LONGEST]}"
        return candidate.unsupported
    names.update({name: candidate.function(name) for name in asked})
    try:
        exec(program, names)
    except BaseException as error:
        if isinstance(error, ImportError) and error is not candidate.last_error:
            problem = f"a test does not import: {text_of(error)[:LONGEST]}"
            candidate.unsupported = f"{problem}; the sandbox has the standard library alone"
        return _message(error, test, candidate)
    if candidate.has_ended:  # a test that expects any error would take that for one
        return f"the program ended; {candidate.last_call}"
    if candidate.no_answer is not None:
        return f"{candidate.no_answer}; {candidate.last_call}"
    return ""


def _message(error: BaseException, test: str, candidate: Candidate) -> str:
    """The line of the test, the error, and the call before it."""
    lines = test.splitlines()
    places = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<test>"]
    parts = []
    if places and places[-1] and places[-1] <= len(lines):
        parts.append(lines[places[-1] - 1].strip()[:LONGEST])
    text = text_of(error)[:LONGEST]
    if not isinstance(error, AssertionError) or text:
        parts.append(f"{type(error).__name__}: {text}")
    if candidate.last_call:
        parts.append(candidate.last_call)
    return "; ".join(parts) or type(error).__name__


def main() -> None:
    answers = os.fdopen(os.dup(0), "r", encoding="ascii", errors="replace")
    calls = os.fdopen(os.dup(1), "w", encoding="ascii")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    job: Any = plain.loads(answers.readline())
    candidate = Candidate(answers, calls)
    report: dict[str, Any] = {"load": "", "messages": [], "unsupported": "", "ended": False}
    try:
        problem = candidate.receive()
        if problem:  # the code may also have written something of its own
            name, message = text_of(problem.get("error", "no code")), text_of(problem.get("message", problem))
            report["load"] = f"{name}: {message}"[:LONGEST]
    except CandidateError as error:
        report["load"] = text_of(error)
    if not report["load"]:
        random.seed(0)  # tests that draw without a seed draw the same every time
        defined = {"__name__": "tests", NOTICE: candidate.notice}
        candidate.unsupported = set_up(job["setup"], defined)
        for test in job["tests"]:
            if candidate.unsupported:
                report["messages"].append(candidate.unsupported)
            elif candidate.has_ended:
                report["messages"].append("the program ended in an earlier test")
            else:
                report["messages"].append(run_test(test, defined, job["entry_point"], candidate))
        report["unsupported"] = candidate.unsupported
    report["ended"] = candidate.has_ended
    print(job["nonce"] + plain.dumps(report), file=calls, flush=True)
    sys.stdout.flush()
    os._exit(0)  # threads and exit handlers of a test have no say any more


if __name__ == "__main__":
    main()
