r"""When two answers are the same mathematics: (x+1)^2 = x^2+2x+1, \frac{1}{2} = 0.5, {1, 2} = {2, 1}.

Units are read first (`units.py`); plain numbers are compared exactly and words as text, here. Everything else is asked
of math-verify (Apache 2.0, on sympy), in a process of its own that is ended when an answer takes too long: alarms work
in the main thread only, and threads cannot be ended. What the library takes for equal and is not, is refused before it
is asked: the pair (1, 2) and the set {1, 2}, and words with the same letters, which it reads as products.

Irrational numbers may be rounded to six decimals, rational ones may not. Letters of formulas are not told apart by
case, and i is the imaginary unit. A unit that one of two answers lacks is not compared: 18 is 18 dollars. Two units
must measure the same: 5 km is 5000 m and not 5 m. A percent sign may be left out; 10 % is 10 and is 1/10, and 0.1 is
not 10.
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
from fractions import Fraction
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from rlhf_lab.core.errors import OPTIONAL, LabError, MissingDependency
from rlhf_lab.rewards.verifiers.units import read_quantity

LONGEST = 400
"""Characters of the longest answer that is compared."""
MEMORY_MIB = 4096
"""Address space of the process that compares."""
START_S = 120.0
"""Seconds in which the process has to import the library, on a busy machine."""
WORKER = Path(__file__).with_name("equivalence_worker.py")

MINUS = re.compile("[−–]")
THOUSANDS = re.compile(r"(?<=\d)(?:,|\{,\}|\\,|\\!|[ \u00a0\u202f])(?=\d{3}(?!\d))")
GROUPED = re.compile(r"[-+]?\d{1,3}(?:(?:,|\{,\}|\\,|\\!|[ \u00a0\u202f])\d{3})+(?:\.\d+)?")
FRACTION = re.compile(r"\\[dtc]?frac\s*(?:\{\s*(-?\d+)\s*\}\s*\{\s*(-?\d+)\s*\}|(\d)\s*(\d))")
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?")
RATIO = re.compile(r"([-+]?\d+)\s*/\s*([-+]?\d+)")
MIXED = re.compile(r"(\d+)(?:\s+(\d+)\s*/\s*(\d+)|\s*\\[dtc]?frac\s*(?:\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}|(\d)\s*(\d)))")
r"""A whole number and a fraction: 1 1/2, 1\frac{1}{2}."""
PERCENT = re.compile(r"\s*(?:\\?%|\\?\s*percent)$", re.IGNORECASE)
TYPE = re.compile(r"\\(?:text|textbf|mathrm|mathbf|textrm|mbox)\s*\{([^{}]*)\}")
WORD = re.compile(r"[^\W\d_]{4,}(?:[ '-][^\W\d_]+)*")
"""Text rather than a product of letters: its first word has four letters or more."""
LETTERS = re.compile(r"[^\W\d_]{2,}(?: [^\W\d_]+)*|[^\W\d_](?: [^\W\d_]+)+")
"""Letters and spaces alone, of an answer or of an element of a list: compared with its like as text, because nobody can
tell the word "act" from a product of a, c and t."""
BETWEEN = re.compile(r"\s*[,;]\s*")
BRACKETS = re.compile(r"\\left\b|\\right\b|\\[{}]|[()\[\]]")
EMPTY_SET = re.compile(r"\\varnothing\b|∅")


def plain_number(answer: str) -> tuple[Fraction, bool] | None:
    r"""(value, whether it has a percent sign) of an answer that is one rational number; None for any other.

    Signs, $, thousands separators (1,000, 1{,}000, 1 000), decimals, exponents, a/b and \frac{a}{b} are read.
    """
    text = MINUS.sub("-", answer).strip().strip("$").strip()
    text = text.removeprefix("\\$").removeprefix("$").strip().removesuffix(".")
    without_percent = PERCENT.sub("", text)
    is_percent = without_percent != text
    text = re.sub(r"^([-+])\s+", r"\1", without_percent).removeprefix("+")
    if GROUPED.fullmatch(text):
        text = THOUSANDS.sub("", text)
    unsigned = text.removeprefix("-")
    mixed = MIXED.fullmatch(unsigned)
    sign = -1 if text.startswith("-\\") or (mixed and unsigned != text) else 1
    fraction = FRACTION.fullmatch(unsigned if sign < 0 else text) or RATIO.fullmatch(text)
    try:
        if mixed:
            whole, above, below = (int(group) for group in mixed.groups() if group is not None)
            # 1 3/2 is no mixed number
            return (sign * (whole + Fraction(above, below)), is_percent) if above < below else None
        if fraction:
            numerator, denominator = (group for group in fraction.groups() if group is not None)
            return sign * Fraction(int(numerator), int(denominator)), is_percent
        return (Fraction(text), is_percent) if NUMBER.fullmatch(text) else None
    except (ValueError, ZeroDivisionError):
        return None


def same_number(first: tuple[Fraction, bool], second: tuple[Fraction, bool]) -> bool:
    """Whether two plain numbers are the same; a percent sign that one of them has may be left out or be hundredths."""
    (a, a_percent), (b, b_percent) = first, second
    if a_percent == b_percent:
        return a == b
    percent, other = (a, b) if a_percent else (b, a)
    return other in (percent, percent / 100)


def as_ballot(answer: str) -> str:
    """An answer as it is counted in a vote: a number by its value, without its unit; anything else by its text."""
    quantity = read_quantity(answer)
    number = None if quantity is None else plain_number(quantity.number)
    if quantity is None or number is None:
        return _as_text(answer).replace(" ", "")
    return str(number[0] * quantity.scale)


def exactly_same(gold: str, stated: str) -> bool | None:
    """Whether two answers are the same, as far as units, numbers and texts tell; None where it takes mathematics."""
    if len(gold) > LONGEST or len(stated) > LONGEST:
        return gold == stated
    if read_quantity(gold) is None or read_quantity(stated) is None:
        return _as_text(gold) == _as_text(stated)
    without_units = in_one_unit(gold, stated)
    if without_units is None:
        return False
    numbers = [plain_number(answer) for answer in without_units]
    if numbers[0] is not None and numbers[1] is not None:
        return same_number(numbers[0], numbers[1])
    texts = [_as_text(answer) for answer in without_units]
    if texts[0] == texts[1]:
        return True
    if any(map(WORD.fullmatch, texts)):  # a word is no product of its letters
        return False
    if _other_words(*texts) or _pair_and_set(*without_units):
        return False
    return None


def in_one_unit(gold: str, stated: str) -> tuple[str, str] | None:
    """Both answers as numbers in the same unit; None for units of two kinds, and words that nobody can compare.

    Where one of them has no unit, both are taken as they are, without it.
    """
    quantities = read_quantity(gold), read_quantity(stated)
    if quantities[0] is None or quantities[1] is None:
        return None
    units = [quantity.unit for quantity in quantities if quantity is not None]
    factors = [Fraction(quantity.scale) for quantity in quantities if quantity is not None]
    if units[0] is not None and units[1] is not None:
        if units[0].powers != units[1].powers:
            return None
        if units[0].factor != units[1].factor:
            factors = [factor * unit.factor for factor, unit in zip(factors, units, strict=True) if unit is not None]
    elif any(units) and any(PERCENT.search(q.number) for q in quantities if q is not None and q.unit is None):
        return None  # 10 % is no 10 km
    first, second = (_times(q.number, factor) for q, factor in zip(quantities, factors, strict=True) if q is not None)
    return first, second


def _times(number: str, factor: Fraction) -> str:
    """A number as text, times a factor."""
    number = EMPTY_SET.sub(r"\\emptyset", number)
    if factor == 1:
        return number
    plain = plain_number(number)
    return f"({number})*({factor})" if plain is None else str(plain[0] * factor)


def _as_text(answer: str) -> str:
    r"""An answer as plain text: without \text{…}, $ and outer spaces, in small letters, single spaces."""
    bare = TYPE.sub(r"\1", EMPTY_SET.sub(r"\\emptyset", answer)).replace("$", "").strip()
    return re.sub(r"\s+", " ", bare).casefold()


def _other_words(first: str, second: str) -> bool:
    """Whether both consist of as many words, or of lists with as many, and not of the same ones."""
    elements = [BETWEEN.split(BRACKETS.sub("", text).strip()) for text in (first, second)]
    words = [sorted(word.replace(" ", "") for word in of_one if LETTERS.fullmatch(word)) for of_one in elements]
    return len(words[0]) == len(words[1]) and words[0] != words[1]


def _pair_and_set(first: str, second: str) -> bool:
    """Whether one is in round brackets, with an order, and the other in braces, without."""
    openings = [answer.strip().strip("$").removeprefix("\\left").lstrip() for answer in (first, second)]
    is_pair = [text.startswith("(") and "," in text for text in openings]
    is_set = [text.startswith("\\{") for text in openings]
    return (is_pair[0] and is_set[1]) or (is_set[0] and is_pair[1])


class _Undecided(Exception):
    """A comparison came to nothing. An exception, because `lru_cache` keeps only what is returned."""


class _Died(_Undecided):
    """The process ended before it had answered."""


class SymbolicEquivalence:
    """Asks the library, in a process that is started when it is first needed and replaced when it fails.

    Threads may share it: they ask one after the other. A fork of the process starts its own.

    Args:
        timeout_s: for one pair of answers; one that takes longer is not equal.

    Attributes:
        undecided: comparisons that took too long, or that ended the process twice. They are not remembered: the
            machine may have been busy.
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
        """Whether the answers are equal; None where that could not be decided in time."""
        with self._lock:
            try:
                return self._cached(gold, stated)
            except _Undecided:
                self.undecided += 1
                return None

    def _ask(self, gold: str, stated: str) -> bool:
        """Whether the answers are equal. Raises _Undecided."""
        try:
            return self._ask_once(gold, stated)
        except _Died:  # for want of memory, or killed; this pair need not be why
            return self._ask_once(gold, stated)

    def _ask_once(self, gold: str, stated: str) -> bool:
        """As `_ask`; the process is ended where it does not answer."""
        process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps([gold, stated]) + "\n")
            process.stdin.flush()
            answer = self._read_line(process, self.timeout_s)
        except BrokenPipeError:  # it ended since the last answer
            self.close()
            raise _Died from None
        except _Undecided:
            self.close()
            raise
        return bool(answer["equal"])

    def _running(self) -> subprocess.Popen[str]:
        """The process, started if there is none. Raises LabError when it does not start."""
        if self._process is not None and self._owner == os.getpid() and self._process.poll() is None:
            return self._process
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
        """The next line of the process. Raises _Died where it ends, _Undecided where none comes in time."""
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
        """End the process, unless it belongs to the process that this one was forked from."""
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
