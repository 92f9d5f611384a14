"""Code is graded by what it computes: nothing that it does to its own process makes a wrong answer right."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from attacks import ENDS_THE_LAUNCHER

from rlhf_lab.packs.code.sandbox import sandbox as module
from rlhf_lab.packs.code.sandbox.grader import HiddenTests, ProgramGrader, _Conversation
from rlhf_lab.packs.code.sandbox.harness import candidate, plain, tests
from rlhf_lab.packs.code.sandbox.probes.candidates import CANDIDATES, EXPECTS_ERROR, HIDDEN_TEST, TESTS
from rlhf_lab.packs.code.sandbox.sandbox import Sandbox
from rlhf_lab.packs.code.sandbox.settings import Sandboxing

SQUARE = "def answer(n):\n    return n * n"
ANSWERS = "import os\nos.write(4, "  # the descriptor on which a candidate answers
FUTURE = "from __future__ import annotations\nfrom dataclasses import dataclass\n"


@pytest.fixture(scope="module")
def grader(best) -> ProgramGrader:
    return ProgramGrader(best)


def test_right_and_wrong(grader):
    requested = HiddenTests(("assert f(1) == 2", "assert f(2) == 4, 'twice'"))
    right = grader.grade("def f(x):\n    return 2 * x", requested)
    assert (right.status, right.passed, right.total, right.message) == ("passed", 2, 2, "")
    assert right.level == "namespaces+seccomp" and right.seconds > 0 and right.cpu_s > 0
    half = grader.grade("def f(x):\n    return x + 1", requested)
    assert (half.status, half.passed) == ("failed", 1)
    assert half.message == "assert f(2) == 4, 'twice'; AssertionError: twice; f(2) returned 3"


def test_the_hidden_test_of_the_probes_can_be_passed(grader):
    assert grader.grade(SQUARE, HiddenTests((HIDDEN_TEST,), "answer")).status == "passed"
    raises = "def answer(n):\n    raise ValueError"
    assert grader.grade(raises, HiddenTests((EXPECTS_ERROR,), "answer")).status == "passed"


@pytest.mark.slow
@pytest.mark.parametrize("name", CANDIDATES)
def test_no_trick_passes(grader, name):
    grade = grader.grade(CANDIDATES[name], HiddenTests((TESTS[name],), "answer"))
    assert grade.status in ("failed", "error", "killed") and grade.passed == 0


@pytest.mark.parametrize(
    ("code", "status", "message"),
    [
        ("def f(x): return", "failed", "f(1) returned None"),
        ("def f(x) return", "error", "SyntaxError"),
        ("", "failed", "name 'f' is not defined"),
        ("import os\nos._exit(0)", "error", "exited before"),
        ("def f(x):\n    while True: pass", "timeout", "exited before"),
        ("def f(x):\n    return (n for n in [2])", "failed", "returned a generator, expected plain data"),
        ("def f(x):\n    a = []\n    a.append(a)\n    return a", "failed", "contains itself"),
        ("def f(x):\n    raise KeyError('k')", "failed", "f(1) raised KeyError"),
        (ANSWERS.replace("os.write", "def f(x):\n    os.write") + "b'x' * (32 << 20))", "output", "exited before"),
        ("def f(x): return 10**5000", "failed", "cannot be written"),
        ("def f(x): raise ValueError(10**5000)", "failed", "f(1) raised ValueError"),
        (ANSWERS + "b'{\"complex\": [1' + b'0' * 400 + b', 0]}\\n')", "error", "not a message: OverflowError"),
        (ANSWERS + 'b\'{"dict": [["error", {"int": "\' + b\'f\' * 5000 + b\'"}]]}\\n\')', "error", "a int that cannot"),
        (ANSWERS + "b'{\"bytes\": [[]]}\\n')", "error", "not a message: TypeError"),
        # dataclasses look up annotations that are text in the program's module
        (f"{FUTURE}@dataclass\nclass Point:\n    x: int\ndef f(x):\n    return Point(x).x + 1", "passed", ""),
    ],
)
def test_statuses(best, code, status, message):
    """No program stops the run, whatever it writes or computes."""
    quick = ProgramGrader(Sandbox(Sandboxing(level=best.level, timeout_s=2.0, memory_mib=128)))
    grade = quick.grade(code, HiddenTests(("assert f(1) == 2, f(1)",), "f"))
    assert grade.status == status and message in grade.message, grade


def test_values_arrive_as_they_were_and_subclasses_as_what_they_are_built_on(grader):
    values = [None, True, -1, 2**80, 1.5, math.inf, 1j, "ä\udc80\n", b"\0", bytearray(b"x"), (1, (2,)), {1, 2}]
    values += [frozenset({1}), {"a": {(1, 2): [3]}}, [], {}, ""]
    test = "for value in VALUES:\n    back = same(value)\n    assert back == value and type(back) is type(value)"
    setup = f"inf = float('inf')\nVALUES = {values!r} + [10**5000]"
    grade = grader.grade("def same(value):\n    return value", HiddenTests((test,), "same", setup))
    assert grade.status == "passed", grade.message

    class Loud(list):
        def __eq__(self, other):
            return True

    back = plain.loads(plain.dumps(Loud([1])))
    assert type(back) is list and back != [2]


def test_other_messages_are_refused():
    texts = ("", "{", '{"tuple": 1}', '{"dict": [[[], 1]]}', '{"exec": "x"}', "[" * 10**5, '{"a": 1, "b": 2}')
    for text in (*texts, f'{{"complex": [1{"0" * 400}, 0]}}'):
        with pytest.raises(ValueError):
            plain.loads(text)


IN_PLACE = "x = [3, 1]\ny = {}\nf(x, y)\nassert x == [1, 3] and y == {'n': 2}"
EXPECTS = "try:\n    f(-1)\nexcept ValueError as error:\n    assert str(error) == 'negative'\nelse:\n    assert False"


@pytest.mark.parametrize(
    ("test", "code", "status"),
    [
        (IN_PLACE, "def f(x, y):\n    x.sort()\n    y['n'] = len(x)", "passed"),
        (IN_PLACE, "def f(x, y):\n    pass", "failed"),
        (EXPECTS, "def f(x):\n    raise ValueError('negative')", "passed"),
        (EXPECTS, "def f(x):\n    raise TypeError('negative')", "failed"),
        ("assert f(lambda x: x) == 1", "def f(g):\n    return g(1)", "unsupported"),  # more than values
        # an error of the program's own import is no fault of the tests
        ("assert f(1) == 2", "def f(x):\n    import no_such_library", "failed"),
        ("assert f(1) == 2", "def f(x):\n    raise ImportError", "failed"),
        ("assert f(1) == 2", "import no_such_library", "error"),
        ("assert f(1) == 2", "def f(x):\n    raise SyntaxError", "failed"),
        # an answer that ends the process of the tests is the code's fault
        ("import os\nif f(2) == 4: os._exit(1)", "def f(n): return 4", "error"),
        ("import os\nif f(2) == 4: os._exit(1)", "def f(n): return 0", "passed"),
    ],
)
def test_the_fault_is_the_codes_or_the_tests(grader, test, code, status):
    assert grader.grade(code, HiddenTests((test,), "f")).status == status


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ("assert f(1) = 2", "a test is not Python: SyntaxError"),
        ("import no_such_library\nassert f(1) == 2", "No module named 'no_such_library'"),
        ("from math import no_such_name", "a test does not import: cannot import name"),
    ],
)
@pytest.mark.parametrize("entry_point", ["f", ""])
def test_broken_tests_are_not_the_programs_failure(grader, test, message, entry_point):
    grade = grader.grade("def f(x):\n    return 2 * x", HiddenTests((test,), entry_point))
    assert grade.status == "unsupported" and message in grade.message, grade


COLLECTS = """
errors = []
for n in (1, 2):
    try:
        f(n)
    except Exception as error:
        errors.append(error)
"""
GUARDED = """
try:
    import no_such_library
except ImportError:
    no_such_library = None
"""
RAISES = "def f(x):\n    raise ImportError(\"No module named 'no_such_library'\")"


@pytest.mark.parametrize(
    "test",
    [
        COLLECTS + "for error in errors: raise error",
        COLLECTS + "for error in errors: raise type(error)(str(error))",
        COLLECTS + "for error in errors: raise error.with_traceback(None)",
        COLLECTS + "raise errors[0] from errors[1]",
        GUARDED + COLLECTS + "for error in errors: raise error",
        GUARDED + "f(1)",
        COLLECTS + "import importlib\nimportlib.import_module(str(errors[0]).split()[-1].strip(chr(39)))",
    ],
)
def test_no_program_makes_its_tests_unsupported(grader, test):
    """Neither by an ImportError that the test collects, nor by one that names a library that the sandbox lacks."""
    grade = grader.grade(RAISES, HiddenTests((test,), "f"))
    assert (grade.status, grade.passed) == ("failed", 0), grade


@pytest.mark.parametrize(
    ("test", "setup"),
    [
        ("if f(1) == 2:\n    from json import (\n        loads,\n        no_such_name,\n    )", ""),
        ("import importlib\nimportlib.import_module('no_such_library')", ""),
        ("assert f(1) == 2 and helper()", "def helper():\n    import no_such_library"),
    ],
)
def test_an_import_that_the_sandbox_lacks_is_unsupported(grader, test, setup):
    grade = grader.grade("def f(x): return 2 * x", HiddenTests((test,), "f", setup))
    assert grade.status == "unsupported" and "a test does not import" in grade.message, grade
    assert grader.grade(RAISES, HiddenTests((test,), "f", setup)).status in ("failed", "unsupported")


@pytest.mark.parametrize(
    ("setup", "message"),
    [
        ("1 / 0", "the setup of the tests does not run: ZeroDivisionError: division by zero"),
        ("def (", "the setup of the tests does not run: SyntaxError"),
        ("raise SystemExit(0)", "the setup of the tests does not run: SystemExit: 0"),
    ],
)
def test_a_broken_setup_is_nobodys_fault(grader, setup, message):
    grade = grader.grade(SQUARE, HiddenTests(("assert True", "assert answer(2) == 4"), "answer", setup=setup))
    assert (grade.status, grade.passed, grade.total) == ("unsupported", 0, 2) and message in grade.message


def test_tests_that_end_their_own_process_are_nobodys_fault(grader):
    """They do so without any code as well: the row is unscored, and others of the batch are graded."""
    ends = [HiddenTests((f"import os; os._exit({status})",), "answer") for status in (1, 0)]
    grades = grader.grade_many([(SQUARE, requested) for requested in (*ends, HiddenTests((HIDDEN_TEST,), "answer"))])
    assert [grade.status for grade in grades] == ["unsupported", "unsupported", "passed"]
    assert grades[0].message == "the test process exited without a report: no message"


@pytest.mark.parametrize(
    "report",
    [
        b"{",
        b"\xff",
        b"[]",
        b'{"dict": [["messages", [""]]]}',
        plain.dumps({"load": "", "messages": [1], "unsupported": "", "ended": False}).encode(),
        plain.dumps({"load": "", "messages": [], "unsupported": "", "ended": False}).encode(),
    ],
)
def test_a_report_of_another_form_is_none(report):
    """Tests come from data sets: one that finds the nonce can report what it likes, and stops no run."""
    conversation = _Conversation(HiddenTests(("assert solve()",)))
    conversation._hear_tests(conversation._nonce.encode() + report + b"\n")
    assert conversation.report is None


def test_a_lost_sandbox_fails_its_own_program_alone(monkeypatch):
    """At the level `rlimits` a program can end its launcher."""
    monkeypatch.setattr(module, "RETRY_PAUSE_S", 0.0)
    requested = HiddenTests((HIDDEN_TEST,), "answer")
    grader = ProgramGrader(Sandbox(Sandboxing(level="rlimits", timeout_s=5.0)))
    grades = grader.grade_many([(SQUARE, requested), (ENDS_THE_LAUNCHER, requested), (SQUARE, requested)], at_once=1)
    assert [(grade.status, grade.lost) for grade in grades] == [("passed", False), ("killed", True), ("passed", False)]
    assert grades[1].message == ("the sandbox was lost twice: the launcher exited with status -9 without a report")


def test_an_error_of_the_tests_own_memory_is_not_one_that_they_wait_for(grader):
    test = "try:\n    f()\n    raise MemoryError\nexcept Exception:\n    pass"
    grade = grader.grade("def f(): return 1", HiddenTests((test,), "f"))
    assert (grade.status, grade.message) == ("failed", f"{tests.TOO_LARGE}; f() returned 1")
    own = grader.grade("def f(): raise MemoryError", HiddenTests((test,), "f"))
    assert own.status == "passed"  # the code's own, as any other error that it raises


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def f(x):\n    return (n for n in [2])", "returned a generator, expected plain data; f(1)"),
        ("def f(x):\n    return object()", "returned a object, expected plain data"),
        (ANSWERS + "b'{\"bytes\": [[]]}\\n' * 9)\ndef f(x):\n    pass", ""),
    ],
)
def test_a_test_that_accepts_any_error_wants_an_answer(grader, code, message):
    """An error that a program cannot raise is not the error that the test waits for."""
    waits = "try:\n    f(1)\nexcept Exception:\n    pass\nelse:\n    assert False"
    grade = grader.grade(code, HiddenTests((waits, waits), "f"))
    assert grade.status in ("failed", "error") and grade.passed == 0 and message in grade.message, grade
    own = grader.grade("class Own(Exception): pass\ndef f(x):\n    raise Own", HiddenTests((waits,), "f"))
    assert own.status == "passed"


def test_the_candidates_process_answers_calls():
    names = {"f": lambda x: x + 1}
    assert candidate.answer(names, {"name": "f", "args": [1], "kwargs": {}}) == {"value": 2, "args": [1]}
    assert candidate.answer(names, {"name": "g", "args": [], "kwargs": {}})["error"] == "NameError"


def test_only_a_line_with_the_nonce_is_a_report():
    """Other output of the tests' process goes to the code, even if it looks like a report."""
    conversation, recognised = _Conversation(HiddenTests(("assert solve()",))), []
    conversation._programs["code"] = SimpleNamespace(feed=recognised.append)
    report = {"load": "", "messages": [""], "unsupported": "", "ended": False}
    for forged in (plain.dumps(report), "0" * 32 + plain.dumps(report)):
        conversation._hear_tests(forged.encode() + b"\n")
    assert conversation.report is None and len(recognised) == 2
    conversation._hear_tests((conversation._nonce + plain.dumps(report)).encode() + b"\n")
    assert conversation.report == report and len(recognised) == 2
    assert conversation._nonce != _Conversation(HiddenTests(("",)))._nonce
