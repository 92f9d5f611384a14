"""The mathematics verifier: which answers are the same, which near misses are not, and that no answer can hang it."""

from __future__ import annotations

import math
import os
import threading
from importlib.util import find_spec

import pytest

from rlhf_lab.core.errors import DataError, MissingDependency
from rlhf_lab.rewards.verifiers import equivalence, equivalence_worker
from rlhf_lab.rewards.verifiers.equivalence import SymbolicEquivalence, exactly_same, parse_plain_number
from rlhf_lab.rewards.verifiers.math import MathVerifier
from rlhf_lab.rewards.verifiers.settings import Math
from rlhf_lab.rewards.verifiers.stated import last_boxed, stated_answer

needs_library = pytest.mark.skipif(find_spec("math_verify") is None, reason="pip install 'rlhf_lab[math]'")

STATED = [
    ("3 + 4 = 7\n#### 7", "7"),
    ("#### $1,000.\nThat is all", "$1,000"),
    ("#### 7\n#### 8", "7"),  # the first mark counts: a response cannot try several answers
    (r"#### \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"so \boxed{41}, no: $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
    (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
    (r"\boxed{\text{A}} it is", r"\text{A}"),
    (r"\boxed{1", None),
    (r"\boxed{}", None),
    ("The answer is 3.5. So much for that.", "3.5"),
    ("The final answer is: **x + 1**.", "x + 1"),
    ("the answer is 4.\nNo, the answer is 5", "5"),
    ("Answer: (1, 2)", "(1, 2)"),
    (r"The answer is \boxed{9}", "9"),
    ("#### Step 1: add\n3 + 4\n#### Step 2\nSo \\boxed{7}", "7"),  # headings of Markdown
    ("**Answer**: 42", "42"),
    ("**Final Answer:**\n42", "42"),
    ("The answer is:\n\\[ 5 \\]", "5"),
    ("The answer isn't known", None),
    ("it is 7", None),
    ("", None),
    ("####", None),
    ("##### 7", "7"),  # the official scorer finds "#### 7" in it
    ("#####\n7", None),
]


@pytest.mark.parametrize(("response", "answer"), STATED)
def test_what_a_reply_states(response, answer):
    assert stated_answer(response) == answer


def test_leniently_the_last_number_is_the_answer():
    assert stated_answer("3 apples and 1,200 pears", lenient=True) == "1200"
    assert stated_answer("none", lenient=True) is None
    assert last_boxed(r"\boxed{a}\boxed{b") == "a"


EXACT: dict[str, dict[bool | None, tuple[str, ...]]] = {
    "7": {True: ("7.0", "+7", "7.", "$7", r"\$7.00"), False: ("7.0001", "-7", "17")},
    "-3": {True: ("− 3",)},
    "1000": {True: ("1,000", "1{,}000", "1 000", "1e3"), None: ("1,00",), False: ("1.000",)},
    "1234567": {True: ("1,234,567",)},
    "0.5": {True: (".5", "1/2")},
    "1/2": {True: (r"\frac{1}{2}",), False: (r"\frac{2}{1}",)},
    "-1/2": {True: (r"-\frac{1}{2}",)},
    r"\frac12": {True: (r"\dfrac{2}{4}",)},
    "10%": {True: (r"10\%", "10", "0.1"), False: ("1000", "20%")},
    "0.1": {True: ("10%",), False: ("10",)},
    "10": {True: ("10%",)},
    r"32,\!000": {True: ("32000",)},  # MATH writes thousands with a negative space
    r"\$1,\!234,\!567": {True: ("1,234,567",)},
    "0.00075": {True: (r"7.5 \times 10^{-4}",)},
    "7.5e-4": {True: ("7.5 × 10⁻⁴",)},
    "-1000": {True: ("-10^3",)},
    "1/6": {True: (r"0.1\overline{6}",), False: (r"0.\overline{16}",)},  # (16 - 1)/90
    r"-0.\overline{3}": {True: ("-1/3",), False: ("-0.3", "1/3")},
    "3/2": {True: ("1½", "1 ½", "3⁄2"), False: ("11/2",)},
    "½ cup": {True: ("0.5 cups",)},
    "1010_2": {True: ("1010_{2}", "1010", "22_{4}"), False: ("1010_{3}", "10")},  # 2·4 + 2 = 10
    "5": {False: (r"\ge 5", "> 5", "≠ 5")},
    "7.5e4": {True: ("7.5 · 10⁴",)},
    r"\text{Monday}": {True: ("monday",)},
    "B": {True: ("B.",)},
    "no  solution": {True: ("No solution",)},
    "12": {None: ("1,2",)},  # two numbers, not twelve
    "1/3": {False: ("0.333333",)},
    "east": {False: ("seat",)},
    r"\text{east}": {False: ("west",)},
    "none": {False: ("5",)},
    "1/0": {True: ("1/0",), None: ("2/0",)},  # no number, but the same text
    r"5\text{ cm}": {False: (r"5\text{ m}",)},
    r"5\text{ cm}^2": {False: (r"5\text{ cm}^3",)},
    "(1, 2)": {False: (r"\{1, 2\}",)},
}
"""Gold: what is the same without any library, what is not, and None for what takes one."""


@pytest.mark.parametrize(
    ("gold", "stated", "same"),
    [(gold, stated, same) for gold, sides in EXACT.items() for same, side in sides.items() for stated in side],
)
def test_numbers_and_words_need_no_library(gold, stated, same):
    assert exactly_same(gold, stated) is same
    assert exactly_same(stated, gold) is same
    exact = MathVerifier(Math(equivalence="exact"))
    assert exact.score({"answer": gold}, "p", rf"\boxed{{{stated}}}") == float(same is True)


def test_plain_numbers_are_exact():
    assert parse_plain_number("0.1")[0] * 3 == parse_plain_number("0.3")[0]
    assert parse_plain_number("1e999") == (10**999, False)
    assert parse_plain_number("1e9999") is None  # a number nobody can hold
    assert parse_plain_number("x") is None and parse_plain_number("") is None


SAME = [
    (r"(x+1)^2", "x^2+2x+1"),
    ("x^2-1", "(x-1)(x+1)"),
    (r"\frac{x}{2}", "0.5x"),
    (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}"),
    (r"\sqrt{2}", "1.414214"),
    (r"2\frac{1}{2}", "2.5"),
    ("120", "5!"),
    ("1", r"\sin^2 x + \cos^2 x"),
    (r"\{1,2\}", "2, 1"),
    (r"\pm 3", r"\{-3, 3\}"),
    (r"1\pm\sqrt{2}", r"1-\sqrt2, 1+\sqrt2"),
    ("x=5", "5"),
    ("[0,1)", r"0 \le x < 1"),
    (r"(2,\infty)", "x>2"),
    (r"(1,\frac{1}{2})", "(1, 0.5)"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{bmatrix}1&2\\3&4\end{bmatrix}"),
    (r"5\text{ cm}", "5"),
    ("5", "5 apples"),
    (r"90^\circ", "90"),
    (r"\$5", "5"),
    (r"\emptyset", r"\{\}"),
    ("3+4i", "4i+3"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    (r"2\sqrt{3}", "2√3"),
    ("9x^2", "9x²"),
    (r"(-\infty,2)\cup(2,\infty)", "(-∞,2)∪(2,∞)"),
    (r"x = \frac{-1 \pm \sqrt{5}}{2}", r"\frac{-1+\sqrt5}{2}, \frac{-1-\sqrt5}{2}"),
    (r"\frac{-1 \pm \sqrt{5}}{2}", "(-1 ± √5)/2"),
]
OTHER = [
    (r"(x+1)^2", "x^2+1"),
    ("x+1", "x-1"),
    (r"\frac{x}{2}", r"\frac{2}{x}"),
    (r"3\sqrt{2}", r"3+\sqrt{2}"),
    (r"\sqrt{2}", "1.41"),
    (r"\frac{1}{3}", "0.33"),
    (r"2\frac{1}{2}", "1"),
    (r"\{1,2\}", r"\{1,2,3\}"),
    (r"\pm 3", "3"),
    ("2", "2 or 3"),
    ("3, 5", "3"),
    ("x=5", "y=5"),
    ("[0,1]", "[0,1)"),
    (r"(2,\infty)", r"(-\infty,2)"),
    ("(1,2)", "(2,1)"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&3\\2&4\end{pmatrix}"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 2 \\ 1 \end{pmatrix}"),
    ("2", "2√3"),
    (r"\frac{-1 \pm \sqrt{5}}{2}", r"\frac{1 \pm \sqrt{5}}{2}"),
    ("12", "1,2"),
    ("5", ""),
    ("5", r"\frac{"),
    ("1/0", "2/0"),
]


@pytest.mark.parametrize(("gold", "stated"), SAME)
def test_the_same_mathematics(verifier, gold, stated):
    assert verifier.equal(gold, stated) is True
    assert verifier.score({"answer": gold}, "p", f"#### {stated}") == 1


@pytest.mark.parametrize(("gold", "stated"), OTHER)
def test_near_misses(verifier, gold, stated):
    assert not verifier.equal(gold, stated) and not verifier.equal(stated, gold)


@needs_library
def test_threads_share_one_process():
    symbolic = SymbolicEquivalence(timeout_s=20)
    results: dict[int, bool | None] = {}

    def ask(i: int) -> None:
        results[i] = symbolic(f"x+{i}", f"{i + i % 2}+x")

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: i % 2 == 0 for i in range(8)}
    symbolic.close()


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """A stand-in for the worker, which counts what it is asked; what it is asked says whether it hangs or ends."""
    requested, worker = tmp_path / "asked", tmp_path / "worker.py"
    worker.write_text(
        "import json, os, sys, time\n"
        "print(json.dumps({'ready': True}), flush=True)\n"
        "for line in sys.stdin:\n"
        "    gold, stated = json.loads(line)\n"
        f"    open({str(requested)!r}, 'a').write(stated + '\\n')\n"
        f"    is_first = open({str(requested)!r}).read().split().count(stated) == 1\n"
        "    if stated == 'dies' or stated == 'dies_once' and is_first: os._exit(1)\n"
        "    if stated in ('hangs', 'hangs+y') or stated == 'hangs_once' and is_first: time.sleep(600)\n"
        "    print(json.dumps({'equal': gold == stated or 'once' in stated}), flush=True)\n"
    )
    monkeypatch.setattr(equivalence, "WORKER", worker)
    monkeypatch.setattr(equivalence, "find_spec", lambda name: True)
    return lambda stated: requested.read_text().split().count(stated)


def test_a_hanging_process_is_ended(asked):
    """The first answer never comes, and later ones do."""
    symbolic = SymbolicEquivalence(timeout_s=1.0)
    assert symbolic("a", "a") is True
    first = symbolic._process
    assert symbolic("a", "hangs") is None
    assert first.poll() is not None  # exited, and waited for
    assert symbolic("a", "dies") is None
    assert symbolic("a", "b") is False
    assert symbolic.undecided == 2
    symbolic.close()
    if hasattr(os, "fork"):
        symbolic("a", "c")
        symbolic._owner = -1  # as in a fork: the parent's process is not this one's to end
        parents = symbolic._process
        symbolic.close()
        assert parents.poll() is None
        parents.kill()
        parents.wait()


def test_what_was_not_decided_is_asked_again_and_costs_the_answer_its_point(asked):
    symbolic = SymbolicEquivalence(timeout_s=0.5)
    assert symbolic("a", "dies_once") is True and symbolic.undecided == 0
    assert symbolic("a", "hangs_once") is None and symbolic.undecided == 1
    assert asked("hangs_once") == 1  # a retry would cost the time again
    assert symbolic("a", "hangs_once") is True and symbolic.undecided == 1
    assert symbolic("a", "dies") is None and symbolic.undecided == 2
    assert asked("dies") == 2
    assert symbolic("a", "hangs_once") is True
    assert asked("hangs_once") == 2  # decided, and remembered
    symbolic.close()
    verifier = MathVerifier(Math(answer_timeout_s=1))
    verdict = verifier.verdict({"answer": "x+2"}, "p", r"\boxed{hangs+y}")
    assert (verdict.score, verdict.parts) == (0, {"stated": 1, "undecided": 1})
    verifier._symbolic.close()


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(equivalence, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"pip install 'rlhf_lab\[math\]'"):
        MathVerifier(Math())
    assert MathVerifier(Math(equivalence="exact")).score({"answer": 7}, "p", "#### 7") == 1
    assert equivalence_worker.__doc__


def test_rows_without_an_answer_are_unscored_and_odd_ones_are_errors():
    verifier = MathVerifier(Math(equivalence="exact"))
    assert math.isnan(verifier.score({}, "p", "#### 7"))
    assert math.isnan(verifier.score({"answer": " "}, "p", "#### 7"))
    assert verifier.score({"answer": 7.0}, "p", "#### 7") == 1
    assert verifier.score({"answer": r"So \boxed{7}."}, "p", "#### 7") == 1
    assert verifier.score({"answer": "3 + 4 = 7\n#### 7"}, "p", "#### 7") == 1
    assert verifier.verdict({"answer": 7}, "p", "seven").parts == {"stated": 0, "undecided": 0}
    with pytest.raises(DataError, match="expected text or a number"):
        verifier.score({"answer": [7]}, "p", "#### 7")
