"""A worked solution as a chain of calculations: which number is the result of which, independent of the prose.

One reader for two sources. GSM8K (arXiv:2110.14168) marks each calculation, "48+24 = <<48+24=72>>72 clips"; the
arithmetic world writes bare equations, "5 + 3 = 8". A step is a line that is not empty; the line of the answer is one.

Where an operand comes from is decided in this order: the result of an earlier calculation that none has used yet; a
number of the question; the result of an earlier calculation that was used before; else a constant, such as 12 months.
On the arithmetic world that is exact. In prose it is a rule of thumb: two results of the same value can be confused.
Left out: numbers in words, percent signs, results that are stated in a line without an equation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol, runtime_checkable

from rlhf_lab.environments.maths.expressions import NUMBER, decimals_of, evaluate, tokens_of, value_of

ANNOTATION = re.compile(r"<<[^<>]*>>")
NUMBERS = re.compile(NUMBER)
ANNOTATED = re.compile(rf"<<([^<>=]+)=(-?(?:{NUMBER}))>>")
"""Groups of this and of PLAIN: expression, result."""
PLAIN = re.compile(rf"(?<![\w.])((?:[(\d.$][\d.,$()\s+*/×÷x−-]*)[\d)])\s*=\s*\$?\s?(-?(?:{NUMBER}))")
OPERATORS = ("+", "-", "*", "/")
ANSWER_MARK = "####"


@runtime_checkable
class StepOracle(Protocol):
    """A world that knows whether each step of a solution is right, which an answer key does not tell."""

    def step_labels(self, prompts: Sequence[str], responses: Sequence[str]) -> list[list[int]]:
        """1 for each right step (`step_lines`) of each reply, 0 for each wrong one."""
        ...


@dataclass(frozen=True, slots=True)
class Number:
    """A number of a solution.

    Attributes:
        value: without its sign.
        begin, end: where it stands in the text.
        source: the calculation whose result it is; None for a number that is given.
    """

    value: Fraction
    begin: int
    end: int
    source: int | None


@dataclass(frozen=True, slots=True)
class Calculation:
    """One "expression = result".

    Attributes:
        line: its step, from 0.
        begin, end: of the expression in the text.
        operands: places in `Chain.numbers` of the expression's numbers.
        copies: places of the same numbers in the prose before it, or empty when prose does not repeat them.
        result: as it is written.
        decimals: digits after the point of the written result.
    """

    line: int
    begin: int
    end: int
    operands: tuple[int, ...]
    copies: tuple[int, ...]
    result: Fraction
    decimals: int


@dataclass(frozen=True, slots=True)
class Chain:
    """A solution read.

    Attributes:
        text: the solution.
        lines: (begin, end) of every step in the text.
        calculations: in order.
        numbers: all numbers of the text, in order.
        unclear: calculations that a number of the text may or may not come from.
    """

    text: str
    lines: tuple[tuple[int, int], ...]
    calculations: tuple[Calculation, ...]
    numbers: tuple[Number, ...]
    unclear: frozenset[int]

    def computes(self, index: int) -> bool:
        """Whether a calculation's own operands give its result, to the digits it is written with."""
        calculation = self.calculations[index]
        value = evaluate(tokens_of(self.text[calculation.begin : calculation.end]) or [])
        return value is not None and abs(value - calculation.result) < Fraction(1, 10**calculation.decimals)

    def depends_on(self, index: int) -> set[int]:
        """The calculations whose results are operands of one."""
        sources = [self.numbers[place].source for place in self.calculations[index].operands]
        return {source for source in sources if source is not None}

    @property
    def answer(self) -> int | None:
        """The calculation that the final answer is the result of; None when it is not known."""
        begin, end = self.lines[-1] if self.lines else (0, 0)
        if ANSWER_MARK not in self.text[begin:end]:
            return None
        return next((number.source for number in self.numbers if begin <= number.begin < end), None)


def step_lines(reply: str) -> list[tuple[int, int]]:
    """(begin, end) of every line that is not empty, outer space left out. `end` is after its last character."""
    lines = []
    begin = 0
    for line in reply.splitlines(keepends=True):
        if line.strip():
            leading_space = len(line) - len(line.lstrip())
            lines.append((begin + leading_space, begin + len(line.rstrip())))
        begin += len(line)
    return lines


def without_annotations(solution: str) -> str:
    """ "48+24 = <<48+24=72>>72" as "48+24 = 72"."""
    return ANNOTATION.sub("", solution)


def read_chain(question: str, solution: str) -> Chain:
    """Any text → its calculations, and where every number in it comes from."""
    return _Reader(question, solution).read()


class _Reader:
    """Reads one solution, line by line.

    Attributes:
        given: numbers of the question.
        numbers: (value, begin, end) of all numbers of the solution, in order; other attributes refer to their places.
        place_at: where a number begins in the text → its place.
        source: place → the calculation that the number is the result of, None for a given one; filled while reading.
        results: of the calculations so far.
        unused: calculations whose result no operand has used yet.
    """

    def __init__(self, question: str, solution: str):
        self.text = solution
        self.given = {value_of(match[0]) for match in NUMBERS.finditer(question)}
        self.numbers = [(value_of(match[0]), match.start(), match.end()) for match in NUMBERS.finditer(solution)]
        self.place_at = {begin: i for i, (_, begin, _) in enumerate(self.numbers)}
        self.source: dict[int, int | None] = {}
        self.results: list[Fraction] = []
        self.unused: set[int | None] = set()
        self.unclear: set[int] = set()
        self.calculations: list[Calculation] = []

    def read(self) -> Chain:
        lines = step_lines(self.text)
        for number, (begin, end) in enumerate(lines):
            for match in self._equations(begin, end):
                self._add_calculation(number, begin, match)
            self._bind_prose(begin, end)
        numbers = [Number(value, begin, end, self.source.get(i)) for i, (value, begin, end) in enumerate(self.numbers)]
        return Chain(self.text, tuple(lines), tuple(self.calculations), tuple(numbers), frozenset(self.unclear))

    def _equations(self, begin: int, end: int) -> Iterator[re.Match[str]]:
        """The annotations of a line, or else its bare equations."""
        annotated = list(ANNOTATED.finditer(self.text, begin, end))
        for match in annotated or PLAIN.finditer(self.text, begin, end):
            tokens = tokens_of(match[1])
            if tokens and any(token in OPERATORS for token in tokens) and evaluate(tokens) is not None:
                yield match

    def _add_calculation(self, line: int, line_begin: int, match: re.Match[str]) -> None:
        """One more calculation: where its operands, their copies in the prose and its result come from."""
        index = len(self.calculations)
        operands = self._places_within(*match.span(1))
        for i in operands:
            origin = self._origin(self.numbers[i][0])
            self.source[i] = origin
            self.unused -= {origin}
        annotated = match[0].startswith("<<")
        copies = self._copies(operands, line_begin, match.start()) if annotated else ()
        for operand, copy in zip(operands, copies, strict=False):
            self.source[copy] = self.source[operand]
        result = self._places_within(*match.span(2))[0]
        self.source[result] = index
        # "<<48+24=72>>72 clips" writes the result once more right after the annotation.
        gap = re.compile(r"[ $]*").match(self.text, match.end())
        after = self.place_at.get(gap.end()) if gap else None
        if after is not None and self.numbers[after][0] == self.numbers[result][0]:
            self.source[after] = index
        value = value_of(match[2])
        self.calculations.append(
            Calculation(line, *match.span(1), tuple(operands), copies, value, decimals_of(match[2]))
        )
        self.results.append(abs(value))  # numbers are read without their sign
        self.unused.add(index)

    def _places_within(self, begin: int, end: int) -> list[int]:
        """Places of the numbers that begin in a span of the text."""
        return [i for i, (_, number_begin, _) in enumerate(self.numbers) if begin <= number_begin < end]

    def _origin(self, value: Fraction) -> int | None:
        """The calculation that an operand of this value is the result of."""
        earlier = [i for i, result in enumerate(self.results) if result == value]
        fresh = [i for i in earlier if i in self.unused]
        if fresh:
            return fresh[-1]
        return earlier[-1] if earlier and value not in self.given else None

    def _copies(self, operands: list[int], begin: int, end: int) -> tuple[int, ...]:
        """The numbers right before an annotation, when they are its operands once more."""
        before = [i for i in self._places_within(begin, end) if i not in self.source][-len(operands) :]
        same_values = [self.numbers[i][0] for i in before] == [self.numbers[i][0] for i in operands]
        return tuple(before) if same_values else ()

    def _bind_prose(self, begin: int, end: int) -> None:
        """The source of a line's numbers outside its calculations: that of the operand or result of this value in the
        line, else the latest result of this value that the question does not state."""
        places = self._places_within(begin, end)
        calculated = [(self.numbers[i][0], self.source[i]) for i in places if i in self.source]
        states_answer = ANSWER_MARK in self.text[begin:end]
        for i in places:
            if i in self.source:
                continue
            value = self.numbers[i][0]
            sources = {source for calculated_value, source in calculated if calculated_value == value}
            if len(sources) > 1:
                self.unclear |= {source for source in sources if source is not None}
                self.source[i] = None
            elif sources:
                self.source[i] = sources.pop()
            else:
                earlier = [k for k, result in enumerate(self.results) if result == value]
                # The answer is a result even where the question happens to state the same number.
                usable = earlier and (states_answer or value not in self.given)
                self.source[i] = earlier[-1] if usable else None
