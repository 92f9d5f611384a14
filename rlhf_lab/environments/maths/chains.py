"""A worked solution as a chain of calculations: which number is the result of which calculation.

One parser handles two sources. GSM8K (arXiv:2110.14168) marks each calculation, "48+24 = <<48+24=72>>72 clips"; the
arithmetic world writes bare equations, "5 + 3 = 8". A step is a line that is not empty, including that of the answer.

The origin of an operand is decided in this order: the result of an earlier calculation that is not used yet; a number
of the question; the result of an earlier calculation that was used before; else a constant, such as 12 months. This is
exact for the arithmetic world. For prose it is a heuristic: two results of the same value can be confused. Not
supported: numbers in words, percent signs, results that a line states without an equation.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol, runtime_checkable

from rlhf_lab.environments.maths.expressions import NUMBER, decimals_of, evaluate, tokens_of, value_of

ANNOTATION = re.compile(r"<<[^<>]*>>")  # an annotation of GSM8K: <<48+24=72>>
NUMBERS = re.compile(NUMBER)
ANNOTATED = re.compile(rf"<<([^<>=]+)=(-?(?:{NUMBER}))>>")
"""Annotated equation. The groups of this pattern and of PLAIN are the expression and the result."""
PLAIN = re.compile(rf"(?<![\w.])((?:[(\d.$][\d.,$()\s+*/×÷x−-]*)[\d)])\s*=\s*\$?\s?(-?(?:{NUMBER}))")
MAX_LINE = 12_000
"""Maximum number of characters of a line whose bare equations are read. `PLAIN` searches the end of an expression from
each of its numbers, which takes quadratic time."""
OPERATORS = ("+", "-", "*", "/")
ANSWER_MARK = "####"


@runtime_checkable
class StepOracle(Protocol):
    """World that knows whether each step of a solution is right, in contrast to an answer key."""

    def step_labels(self, prompts: Sequence[str], responses: Sequence[str]) -> list[list[int]]:
        """Return 1 for each right step (`step_lines`) of each response, 0 for each wrong one."""
        ...


@dataclass(frozen=True, slots=True)
class Number:
    """A number of a solution.

    Attributes:
        value: absolute value.
        start: position of its first character in the text.
        end: position after its last character.
        source: index of the calculation whose result it is; None for a number of the problem.
    """

    value: Fraction
    start: int
    end: int
    source: int | None


@dataclass(frozen=True, slots=True)
class Calculation:
    """One "expression = result".

    Attributes:
        line: index of its step.
        start: position of the first character of the expression in the text.
        end: position after the last character of the expression.
        operands: indices in `Chain.numbers` of the expression's numbers.
        copies: indices of the same numbers in the prose before the expression; empty if the prose does not repeat them.
        result: value as it is written.
        decimals: number of digits after the point of the written result.
    """

    line: int
    start: int
    end: int
    operands: tuple[int, ...]
    copies: tuple[int, ...]
    result: Fraction
    decimals: int


@dataclass(frozen=True, slots=True)
class Chain:
    """A parsed solution.

    Attributes:
        lines: (start, end) of every step in the text.
        calculations: calculations in the order of the text.
        numbers: all numbers of the text, in order.
        unclear: indices of calculations that a number of the text may or may not originate from.
    """

    text: str
    lines: tuple[tuple[int, int], ...]
    calculations: tuple[Calculation, ...]
    numbers: tuple[Number, ...]
    unclear: frozenset[int]

    def computes(self, index: int) -> bool:
        """Return True if a calculation's own operands give its result, up to the digits that are written."""
        calculation = self.calculations[index]
        expression = self.text[calculation.start : calculation.end]
        value = evaluate(tokens_of(expression) or [])
        # results may be rounded or truncated, so an error below one unit of the last digit is accepted
        unit = Fraction(1, 10**calculation.decimals)
        return value is not None and abs(value - calculation.result) < unit

    def depends_on(self, index: int) -> set[int]:
        """Return the calculations whose results are operands of this one."""
        sources = [self.numbers[position].source for position in self.calculations[index].operands]
        return {source for source in sources if source is not None}

    @property
    def answer(self) -> int | None:
        """Index of the calculation whose result is the final answer; None if it is unknown."""
        start, end = self.lines[-1] if self.lines else (0, 0)
        if ANSWER_MARK not in self.text[start:end]:
            return None
        return next((number.source for number in self.numbers if start <= number.start < end), None)


def step_lines(response: str) -> list[tuple[int, int]]:
    """Return (start, end) of every line that is not empty, without outer space. `end` is after the last character."""
    lines = []
    start = 0
    for line in response.splitlines(keepends=True):  # with their ends, which count as characters
        if line.strip():
            leading_space = len(line) - len(line.lstrip())
            lines.append((start + leading_space, start + len(line.rstrip())))
        start += len(line)
    return lines


def without_annotations(solution: str) -> str:
    """Remove annotations: "48+24 = <<48+24=72>>72" becomes "48+24 = 72"."""
    return ANNOTATION.sub("", solution)


def read_chain(question: str, solution: str) -> Chain:
    """Parse any text into its calculations and the origin of each of its numbers."""
    return _ChainReader(question, solution).read()


class _ChainReader:
    """Parser of one solution, line by line."""

    def __init__(self, question: str, solution: str):
        self.text = solution
        self.provided = {value_of(match[0]) for match in NUMBERS.finditer(question)}  # numbers of the question
        # (value, start, end) of all numbers of the solution, in order; other attributes use their indices
        self.numbers = [(value_of(match[0]), *match.span()) for match in NUMBERS.finditer(solution)]
        self.begins = [start for _, start, _ in self.numbers]
        self.place_at = {start: i for i, start in enumerate(self.begins)}
        # index of a number → calculation whose result it is, None for other numbers; filled while parsing
        self.source: dict[int, int | None] = {}
        self.calculations_of: dict[Fraction, list[int]] = {}  # result → the calculations so far that have it
        self.unused: dict[Fraction, list[int]] = {}  # the same for results that are not operands yet
        # numbers of the current line before the current equation that belong to no calculation
        self.free: list[int] = []
        self.seen = 0  # index of the first number of the current line that was not considered for `free` yet
        self.unclear: set[int] = set()  # calculations that a number of the text may or may not originate from
        self.calculations: list[Calculation] = []

    def read(self) -> Chain:
        lines = step_lines(self.text)
        for index, (start, end) in enumerate(lines):
            self.free = []
            self.seen = bisect_left(self.begins, start)  # index of the first number of this line
            for match in self._equations(start, end):
                self._add_calculation(index, match)
            self._bind_prose(start, end)
        numbers = [Number(*number, self.source.get(i)) for i, number in enumerate(self.numbers)]
        return Chain(self.text, tuple(lines), tuple(self.calculations), tuple(numbers), frozenset(self.unclear))

    def _equations(self, start: int, end: int) -> Iterator[re.Match[str]]:
        """Yield the annotations of a line or, if there are none, its bare equations."""
        # annotations are exact, while bare equations are recognised by a pattern
        annotated = list(ANNOTATED.finditer(self.text, start, end))
        bare = PLAIN.finditer(self.text, start, end) if end - start <= MAX_LINE else ()
        for match in annotated or bare:
            tokens = tokens_of(match[1])
            # "x = 5" or a bare number is no calculation
            if tokens and any(token in OPERATORS for token in tokens) and evaluate(tokens) is not None:
                yield match

    def _add_calculation(self, line: int, match: re.Match[str]) -> None:
        """Add a calculation, and set the sources of its operands, of their copies in the prose and of its result."""
        index = len(self.calculations)
        operands = self._positions_within(*match.span(1))
        for i in operands:
            self.source[i] = self._origin(self.numbers[i][0])
        annotated = match[0].startswith("<<")
        copies = self._copies(operands, match.start()) if annotated else ()
        for operand, copy in zip(operands, copies, strict=False):
            self.source[copy] = self.source[operand]
        result = self._positions_within(*match.span(2))[0]
        self.source[result] = index
        # "<<48+24=72>>72 clips" repeats the result right after the annotation.
        gap = re.compile(r"[ $]*").match(self.text, match.end())
        after = self.place_at.get(gap.end()) if gap else None
        if after is not None and self.numbers[after][0] == self.numbers[result][0]:
            self.source[after] = index
        value = value_of(match[2])
        self.calculations.append(
            Calculation(line, *match.span(1), tuple(operands), copies, value, decimals_of(match[2]))
        )
        # numbers are parsed without their sign
        self.calculations_of.setdefault(abs(value), []).append(index)
        self.unused.setdefault(abs(value), []).append(index)

    def _positions_within(self, start: int, end: int) -> list[int]:
        """Return the indices of the numbers that start in a span of the text."""
        first = bisect_left(self.begins, start)
        after_last = bisect_left(self.begins, end)
        return list(range(first, after_last))

    def _origin(self, value: Fraction) -> int | None:
        """Return the calculation whose result has this value, and mark that result as used; None if there is none."""
        # the latest unused result first: solutions mostly continue from the step before
        if self.unused.get(value):
            return self.unused[value].pop()  # the next operand of this value has another source
        earlier = self.calculations_of.get(value, [])
        return earlier[-1] if earlier and value not in self.provided else None

    def _copies(self, operands: list[int], end: int) -> tuple[int, ...]:
        """Return the numbers of the line right before an annotation, if they repeat its operands.

        Args:
            end: position of the annotation.
        """
        # only numbers that belong to no other calculation; each number of a line is looked at once
        after_last = bisect_left(self.begins, end)
        self.free += [i for i in range(self.seen, after_last) if i not in self.source]
        self.seen = max(self.seen, after_last)
        before = self.free[-len(operands) :]
        values_before = [self.numbers[i][0] for i in before]
        operand_values = [self.numbers[i][0] for i in operands]
        if values_before != operand_values:
            return ()
        del self.free[-len(operands) :]
        return tuple(before)

    def _bind_prose(self, start: int, end: int) -> None:
        """Set the sources of a line's numbers outside its calculations.

        The source is that of the operand or result with the same value in the line, else the latest result with this
        value that the question does not state.
        """
        positions = self._positions_within(start, end)
        calculated: dict[Fraction, set[int | None]] = {}
        for i in positions:
            if i in self.source:
                value = self.numbers[i][0]
                calculated.setdefault(value, set()).add(self.source[i])
        marked: set[Fraction] = set()  # values whose origins are in `unclear` already
        states_answer = ANSWER_MARK in self.text[start:end]
        for i in positions:
            if i in self.source:
                continue
            value = self.numbers[i][0]
            sources = calculated.get(value, set())
            # the line has this value with two origins, so the origin of this number is unknown
            if len(sources) > 1:
                if value not in marked:
                    self.unclear |= {source for source in sources if source is not None}
                    marked.add(value)
                self.source[i] = None
            elif sources:
                [self.source[i]] = sources
            else:
                earlier = self.calculations_of.get(value, [])
                # The answer is a result even if the question happens to state the same number.
                usable = earlier and (states_answer or value not in self.provided)
                self.source[i] = earlier[-1] if usable else None
