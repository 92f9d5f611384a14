r"""Mathematical equivalence of two answers: (x+1)^2 = x^2+2x+1, \frac{1}{2} = 0.5, {1, 2} = {2, 1}.

Units are parsed first (`units.py`). This module then compares plain numbers exactly and words as text. Everything else
goes to math-verify (Apache 2.0, based on sympy) in a separate process that is killed if an answer takes too long:
alarms work only in the main thread, and threads cannot be killed. Two cases that the library wrongly accepts are
rejected beforehand: the pair (1, 2) equals the set {1, 2}, and words with the same letters, which it reads as products.

Rules: irrational numbers may be rounded to six decimals, rational numbers may not. Letters in formulas are compared
without case, and i is the imaginary unit. A unit missing in one of the answers is ignored: 18 equals 18 dollars. If
both have units, the quantities must be equal: 5 km equals 5000 m, not 5 m. A percent sign may be omitted: 10 % equals
10 and also 1/10, but 0.1 does not equal 10.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import select
import subprocess
import sys
import threading
import unicodedata
from fractions import Fraction
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from rlhf_lab.core.errors import OPTIONAL, LabError, MissingDependency
from rlhf_lab.rewards.verifiers.units import read_quantity

LONGEST = 400
"""Maximum characters of an answer that is compared as mathematics."""
MEMORY_MIB = 4096
"""Address-space limit of the comparing process in MiB."""
START_S = 120.0
"""Maximum seconds for the comparing process to import math-verify, even on a busy machine."""
WORKER = Path(__file__).with_name("equivalence_worker.py")

# Typographic minus signs and dashes, which models often write.
MINUS = re.compile("[−–]")
THOUSANDS = re.compile(r"(?<=\d)(?:,|\{,\}|\\,|\\!|[ \u00a0\u202f])(?=\d{3}(?!\d))")
GROUPED = re.compile(r"[-+]?\d{1,3}(?:(?:,|\{,\}|\\,|\\!|[ \u00a0\u202f])\d{3})+(?:\.\d+)?")
FRACTION = re.compile(r"\\[dtc]?frac\s*(?:\{\s*(-?\d+)\s*\}\s*\{\s*(-?\d+)\s*\}|(\d)\s*(\d))")
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?")
POWER_OF_TEN = re.compile(
    r"(?:((?:\d+\.?\d*|\.\d+))\s*(?:\\times|\\cdot|[×·*])\s*)?10\s*\^\s*(?:\{\s*([-+]?\d{1,3})\s*\}|([-+]?\d{1,3}))"
)
"""Scientific notation: 6.02 \\times 10^{23}."""
REPEATING = re.compile(r"(\d*)\.(\d*)\\(?:overline|bar)\s*\{\s*(\d+)\s*\}")
r"""A repeating decimal: 0.1\overline{6} is 1/6."""
IN_BASE = re.compile(r"(\d[\da-z]*)_(?:\{\s*(\d{1,2})\s*\}|(\d{1,2}))", re.IGNORECASE)
"""A numeral with its base: 1010_2, 2b_{16}."""
RATIO = re.compile(r"([-+]?\d+)\s*/\s*([-+]?\d+)")
MIXED = re.compile(r"(\d+)(?:\s+(\d+)\s*/\s*(\d+)|\s*\\[dtc]?frac\s*(?:\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}|(\d)\s*(\d)))")
r"""A mixed number: 1 1/2, 1\frac{1}{2}."""
PERCENT = re.compile(r"\s*(?:\\?%|\\?\s*percent)$", re.IGNORECASE)
TYPE = re.compile(r"\\(?:text|textbf|mathrm|mathbf|textrm|mbox)\s*\{([^{}]*)\}")
WORD = re.compile(r"[^\W\d_]{4,}(?:[ '-][^\W\d_]+)*")
"""Text instead of a product of variables: its first word has four letters or more."""
LETTERS = re.compile(r"[^\W\d_]{2,}(?: [^\W\d_]+)*|[^\W\d_](?: [^\W\d_]+)+")
"""Letters and spaces only, in an answer or in an element of a list. Such texts are compared as text, because the word
"act" cannot be distinguished from a product of a, c and t."""
BETWEEN = re.compile(r"\s*[,;]\s*")
BRACKETS = re.compile(r"\\left\b|\\right\b|\\[{}]|[()\[\]]")
CHARACTERS = str.maketrans(
    {"∅": r"\emptyset ", "∞": r"\infty ", "∪": r"\cup ", "∩": r"\cap ", "±": r"\pm ", "·": r"\cdot "}
)
SUPERSCRIPTS = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+")
ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|(\d+(?:\.\d+)?|[a-zA-Z]))")
INEQUALITY = re.compile(r"\s*(?:\\(?:neq?|geq?|leq?|geqslant|leqslant|gt|lt)\b|[<>≤≥≠])")
"""The beginning of an answer such as "\\ge 5", which math-verify reads as 5."""
INNER_SIGNS = re.compile(r"(?:(?<!\\)\{[^{}]*|\([^(),]*[\w}]\s*)\\(?:pm|mp)\b")
r"""± in an argument or in brackets: \frac{1 \pm \sqrt{5}}{2}. math-verify reads ± only between top-level terms."""


def parse_plain_number(answer: str) -> tuple[Fraction, bool] | None:
    r"""Return (value, True if it has a percent sign) of an answer that is one rational number, else None.

    Accepted are signs, $, thousands separators (1,000, 1{,}000, 1 000), decimals, exponents (1e3, 10^3), a/b and
    \frac{a}{b}, mixed numbers and repeating decimals (0.\overline{3}).
    """
    text = MINUS.sub("-", _with_latex(answer)).strip().strip("$").strip()
    text = text.removeprefix("\\$").removeprefix("$").strip().removesuffix(".")
    without_percent = PERCENT.sub("", text)
    is_percent = without_percent != text
    text = re.sub(r"^([-+])\s+", r"\1", without_percent).removeprefix("+")
    if GROUPED.fullmatch(text):
        text = THOUSANDS.sub("", text)
    unsigned = text.removeprefix("-")
    mixed = MIXED.fullmatch(unsigned)
    # `Fraction` parses a leading minus itself, but not the minus of a \frac or of a mixed number.
    sign = -1 if text.startswith("-\\") or (mixed and unsigned != text) else 1
    fraction = FRACTION.fullmatch(unsigned if sign < 0 else text) or RATIO.fullmatch(text)
    try:
        if mixed:
            full, above, below = (int(group) for group in mixed.groups() if group is not None)
            # 1 3/2 is not a mixed number
            return (sign * (full + Fraction(above, below)), is_percent) if above < below else None
        if fraction:
            numerator, denominator = (group for group in fraction.groups() if group is not None)
            return sign * Fraction(int(numerator), int(denominator)), is_percent
        scientific = POWER_OF_TEN.fullmatch(unsigned)
        if scientific:
            exponent = int(scientific[2] or scientific[3])
            sign = 1 if unsigned == text else -1
            return sign * Fraction(scientific[1] or 1) * Fraction(10) ** exponent, is_percent
        repeating = REPEATING.fullmatch(unsigned)
        if repeating:
            start, before, period = repeating.groups()
            # the digits with one period minus those without it, as in 0.1666… = (16 - 1)/90
            difference = int(f"0{start}{before}{period}") - int(f"0{start}{before}")
            sign = 1 if unsigned == text else -1
            return sign * Fraction(difference, 10 ** len(before) * (10 ** len(period) - 1)), is_percent
        return (Fraction(text), is_percent) if NUMBER.fullmatch(text) else None
    except (ValueError, ZeroDivisionError):
        return None


def same_number(first: tuple[Fraction, bool], second: tuple[Fraction, bool]) -> bool:
    """Return True if two numbers are equal. A percent sign in only one may be ignored, or mean hundredths."""
    (a, a_percent), (b, b_percent) = first, second
    if a_percent == b_percent:
        return a == b
    percent, other = (a, b) if a_percent else (b, a)
    return other in (percent, percent / 100)


def as_ballot(answer: str) -> str:
    """Return the key of an answer in a majority vote: a number by value without its unit, anything else by its text."""
    quantity = read_quantity(answer) if len(answer) <= LONGEST else None
    number = None if quantity is None else parse_plain_number(quantity.number)
    if quantity is None or number is None:
        return _as_text(answer).replace(" ", "")
    return str(number[0] * quantity.scale)


def exactly_same(gold: str, stated: str) -> bool | None:
    """Return True or False if units, numbers and texts decide the equality of two answers; None if they do not."""
    if len(gold) > LONGEST or len(stated) > LONGEST:
        return gold == stated
    if read_quantity(gold) is None or read_quantity(stated) is None:
        return _as_text(gold) == _as_text(stated)
    without_units = in_one_unit(gold, stated)
    if without_units is None:
        return False
    # Cheap exact tests come first; the library is needed only if they do not decide.
    numbers = [parse_plain_number(answer) for answer in without_units]
    if numbers[0] is not None and numbers[1] is not None:
        return same_number(numbers[0], numbers[1])
    texts = [_as_text(answer) for answer in without_units]
    if texts[0] == texts[1]:
        return True
    in_bases = _same_numeral(*texts)
    if in_bases is not None:
        return in_bases
    # "\\ge 5" is not the number 5
    if any(numbers) and any(map(INEQUALITY.match, texts)):
        return False
    if any(map(WORD.fullmatch, texts)):  # a word is not the product of its letters
        return False
    if _other_words(*texts) or _pair_and_set(*without_units):
        return False
    return None


def in_one_unit(gold: str, stated: str) -> tuple[str, str] | None:
    """Convert both answers to the same unit; return None for different kinds of units and for incomparable words.

    If one of them has no unit, the unit of the other is dropped.
    """
    quantities = read_quantity(gold), read_quantity(stated)
    if quantities[0] is None or quantities[1] is None:
        return None
    units = [quantity.unit for quantity in quantities if quantity is not None]
    factors = [Fraction(quantity.scale) for quantity in quantities if quantity is not None]
    if units[0] is not None and units[1] is not None:
        if units[0].powers != units[1].powers:
            return None
        # Equal factors stay as they are, so that formulas are not multiplied needlessly.
        if units[0].factor != units[1].factor:
            factors = [factor * unit.factor for factor, unit in zip(factors, units, strict=True) if unit is not None]
    elif any(units) and any(PERCENT.search(q.number) for q in quantities if q is not None and q.unit is None):
        return None  # 10 % does not equal 10 km
    first, second = (_times(q.number, factor) for q, factor in zip(quantities, factors, strict=True) if q is not None)
    return first, second


def _times(number: str, factor: Fraction) -> str:
    number = _with_latex(number)
    if INNER_SIGNS.search(number):
        number = ", ".join(
            number.replace("\\pm", upper).replace("\\mp", lower) for upper, lower in (("+", "-"), ("-", "+"))
        )
    if factor == 1:
        return number
    normalised = parse_plain_number(number)
    return f"({number})*({factor})" if normalised is None else str(normalised[0] * factor)


def _with_latex(text: str) -> str:
    r"""Return a text with LaTeX in place of characters that math-verify does not read: 2√3, x², (-∞, 1) ∪ (2, 3)."""
    text = ROOT.sub(lambda root: rf"\sqrt{{{root[1] or root[2]}}}", text)
    text = SUPERSCRIPTS.sub(lambda power: f"^{{{unicodedata.normalize('NFKC', power[0])}}}", text)
    text = text.replace(r"\varnothing", r"\emptyset")
    return text.translate(CHARACTERS)


def _as_text(answer: str) -> str:
    r"""Return an answer as lower-case text: without \text{…}, $, extra spaces and a final period."""
    bare = TYPE.sub(r"\1", _with_latex(answer)).replace("$", "").strip().removesuffix(".")
    return re.sub(r"\s+", " ", bare).strip().casefold()


def _same_numeral(first: str, second: str) -> bool | None:
    """Return whether two numerals are equal, at least one of which has a base; None for other answers.

    math-verify ignores the base. A base that is missing in one answer is ignored, as a unit is.
    """
    numerals = [IN_BASE.fullmatch(text) for text in (first, second)]
    if numerals[0] and numerals[1]:
        try:
            values = [int(numeral[1], int(numeral[2] or numeral[3])) for numeral in numerals if numeral]
        except ValueError:  # a variable with an index: 2x_1
            return None
        return values[0] == values[1]
    numeral, other = (numerals[0], second) if numerals[0] else (numerals[1], first)
    return numeral[1] == other if numeral and other.isdecimal() else None


def _other_words(first: str, second: str) -> bool:
    """Return True if both answers have the same number of words, alone or in lists, but not the same words."""
    elements = [BETWEEN.split(BRACKETS.sub("", text).strip()) for text in (first, second)]
    words = [sorted(word.replace(" ", "") for word in of_one if LETTERS.fullmatch(word)) for of_one in elements]
    return len(words[0]) == len(words[1]) and words[0] != words[1]


def _pair_and_set(first: str, second: str) -> bool:
    """Return True if one answer is a pair in round brackets and the other a set in braces."""
    openings = [answer.strip().strip("$").removeprefix("\\left").lstrip() for answer in (first, second)]
    is_pair = [text.startswith("(") and "," in text for text in openings]
    is_set = [text.startswith("\\{") for text in openings]
    return (is_pair[0] and is_set[1]) or (is_set[0] and is_pair[1])


class _Undecided(Exception):
    """A comparison without a result. It is an exception because `lru_cache` stores only returned values."""


class _Died(_Undecided):
    """The process exited before it answered."""


class SymbolicEquivalence:
    """Comparison by math-verify in a separate process, which is started on first use and replaced if it fails.

    Threads may share the object; their comparisons run one after another. A forked process starts its own.

    Args:
        timeout_s: time limit in seconds for one pair of answers; a slower pair is not equal.

    Attributes:
        undecided: number of comparisons that took too long, or that killed the process twice. They are not cached,
            because the machine may have been busy.
    """

    def __init__(self, timeout_s: float):
        if find_spec("math_verify") is None:
            raise MissingDependency(*OPTIONAL["math_verify"])
        self.timeout_s = timeout_s
        self.undecided = 0
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0  # process id that started `_process`
        self._cached = lru_cache(maxsize=2**16)(self._ask)
        atexit.register(self.close)

    def __call__(self, gold: str, stated: str) -> bool | None:
        """Return True if the answers are equal; None if that could not be decided in time."""
        # The process answers one question at a time, so threads must not write to its pipe at once.
        with self._lock:
            try:
                return self._cached(gold, stated)
            except _Undecided:
                self.undecided += 1
                return None

    def _ask(self, gold: str, stated: str) -> bool:
        try:
            return self._ask_once(gold, stated)
        except _Died:  # out of memory, or killed; this pair need not be the reason, so try once more
            return self._ask_once(gold, stated)

    def _ask_once(self, gold: str, stated: str) -> bool:
        process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps([gold, stated]) + "\n")
            process.stdin.flush()
            answer = self._read_line(process, self.timeout_s)
        except BrokenPipeError:  # it exited after its last answer
            self.close()
            raise _Died from None
        except _Undecided:
            self.close()
            raise
        return bool(answer["equal"])

    def _running(self) -> subprocess.Popen[str]:
        """Return the process, starting it if needed. Raise LabError if it does not start."""
        if self._process is not None and self._owner == os.getpid() and self._process.poll() is None:
            return self._process
        # -P keeps the script's directory off sys.path: json.py and math.py in it would hide the standard modules.
        command = [sys.executable, "-P", str(WORKER), str(MEMORY_MIB)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._process, self._owner = process, os.getpid()
        try:
            self._read_line(process, START_S)
        except _Undecided:
            self.close()
            raise LabError(
                "the process that compares answers does not start; try: "
                f"{sys.executable} -c 'import math_verify', or use reward.terms.math.equivalence=exact"
            ) from None
        return process

    @staticmethod
    def _read_line(process: subprocess.Popen[str], timeout_s: float) -> dict[str, bool]:
        """Return the next line of the process. Raise _Died if it exits, _Undecided if no line comes in time."""
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], timeout_s)
        if not ready:
            raise _Undecided
        line = process.stdout.readline()
        if not line.endswith("\n"):
            raise _Died
        answer: dict[str, bool] = json.loads(line)
        return answer

    def close(self) -> None:
        """Kill the process, unless it belongs to the parent of this forked process."""
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
