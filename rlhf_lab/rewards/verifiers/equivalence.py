r"""When two answers are the same mathematics: (x+1)^2 = x^2+2x+1, \frac{1}{2} = 0.5, {1, 2} = {2, 1}.

Plain numbers are compared exactly and words as text, here. Everything else is asked of math-verify (Apache 2.0, on
sympy), in a process of its own that is ended when an answer takes too long: alarms work in the main thread only, and
threads cannot be ended. What the library takes for equal and is not, is refused before it is asked: 5 cm and 5 m, the
pair (1, 2) and the set {1, 2}, and words with the same letters, which it reads as products.

Irrational numbers may be rounded to six decimals, rational ones may not. Letters of formulas are not told apart by
case. A unit or a percent sign may be left out; 10 % is 10 and is 1/10, and 0.1 is not 10.
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
PERCENT = re.compile(r"\s*(?:\\?%|\\?\s*percent)$", re.IGNORECASE)
UNIT = re.compile(r"\\(?:text|mathrm|textrm|mbox|operatorname)\s*\{\s*([^{}]*?)\s*\}(?:\^\{?(-?\d)\}?)?\s*$")
TYPE = re.compile(r"\\(?:text|textbf|mathrm|mathbf|textrm|mbox)\s*\{([^{}]*)\}")
WORD = re.compile(r"[^\W\d_]{4,}(?:[ '-][^\W\d_]+)*")
"""Text rather than a product of letters: its first word has four letters or more."""


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
    sign = -1 if text.startswith("-\\") else 1
    fraction = FRACTION.fullmatch(text.removeprefix("-") if sign < 0 else text) or RATIO.fullmatch(text)
    try:
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
    """An answer as it is counted in a vote: a plain number by its value, anything else by its text without spaces."""
    number = plain_number(answer)
    return _as_text(answer).replace(" ", "") if number is None else str(number[0])


def exactly_same(gold: str, stated: str) -> bool | None:
    """Whether two answers are the same, as far as numbers and texts tell; None where it takes mathematics."""
    if len(gold) > LONGEST or len(stated) > LONGEST:
        return gold == stated
    numbers = plain_number(gold), plain_number(stated)
    if numbers[0] is not None and numbers[1] is not None:
        return same_number(numbers[0], numbers[1])
    texts = _as_text(gold), _as_text(stated)
    if texts[0] == texts[1]:
        return True
    if any(map(WORD.fullmatch, texts)):  # a word is no product of its letters
        return False
    if _different_units(gold, stated) or _pair_and_set(gold, stated):
        return False
    return None


def _as_text(answer: str) -> str:
    r"""An answer as plain text: without \text{…}, $ and outer spaces, in small letters, single spaces."""
    bare = TYPE.sub(r"\1", answer).replace("$", "").strip()
    return re.sub(r"\s+", " ", bare).casefold()


def _different_units(first: str, second: str) -> bool:
    r"""Whether both have a unit, in \text{…} behind a number, and not the same."""
    units = [UNIT.search(answer.strip().strip("$")) for answer in (first, second)]
    written = [(unit[1].casefold().removesuffix("s"), unit[2]) for unit in units if unit is not None]
    return len(written) == 2 and written[0] != written[1]


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
