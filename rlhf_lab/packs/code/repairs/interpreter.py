"""Interpreter of the language of repairs.

A run takes 0.1 ms, compared with 33 ms in the sandbox. This matters because a group of episodes runs hundreds of
programs.

    line        = [head ":"] assignment
    head        = "if" operand comparison operand | "for" "x" "in" "v"
    assignment  = name "=" operand [operator operand]
    operand     = name | number

Loops iterate over a list that no line can extend, so every program terminates.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from rlhf_lab.packs.code.repairs.programs import COMPARISONS, LOOPED, NAMES, OPERATORS, PARAMETERS, Line, RepairProgram

Values = dict[str, Any]
Operand = Callable[[Values, int], Any]
Statement = Callable[[Values, int], None]

ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "min": min,
    "max": max,
}
COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {">": operator.gt, "<": operator.lt, "==": operator.eq}
KNOWN_NAMES = {*PARAMETERS, *NAMES, LOOPED}
assert set(ARITHMETIC) == set(OPERATORS) and set(COMPARE) == set(COMPARISONS)


class ProgramError(Exception):
    """A program stopped with an error.

    Attributes:
        line: index of the line from 0; the return statement has the index after the last line.
        problem: description of the error, part of the world's text.
    """

    def __init__(self, line: int, problem: str):
        super().__init__(f"line {line + 1} : {problem}")
        self.line, self.problem = line, problem


def run(program: RepairProgram, inputs: Mapping[str, Any]) -> Any:
    """Run a program and return its result. Raises ProgramError if it stops with an error."""
    values = dict(inputs)
    for index, line in enumerate(program.lines):
        statement = _parse(line)
        if statement is None:
            raise ProgramError(index, "is no line of the language")
        try:
            statement(values, index)
        except TypeError:  # an operator of numbers got the list `v`
            raise ProgramError(index, "a list is no number") from None
    return _read(program.result)(values, len(program.lines))


@lru_cache(maxsize=65536)
def _parse(line: Line) -> Statement | None:
    """Compile a line to a function of the variables; None if it is not a line of the language."""
    if ":" not in line:
        return _parse_assignment(line)
    colon = line.index(":")
    head, body = line[:colon], _parse_assignment(line[colon + 1 :])
    if body is None:
        return None
    if head == ("for", LOOPED, "in", "v"):
        return _loop(body)
    if len(head) == 4 and head[0] == "if" and head[2] in COMPARE and _is_operand(head[1]) and _is_operand(head[3]):
        return _condition(_read(head[1]), COMPARE[head[2]], _read(head[3]), body)
    return None


def _loop(body: Statement) -> Statement:
    def statement(values: Values, line: int) -> None:
        for number in list(values["v"]):  # a copy, so that the body cannot affect the iteration
            values[LOOPED] = number
            body(values, line)

    return statement


def _condition(left: Operand, compare: Callable[[Any, Any], bool], right: Operand, body: Statement) -> Statement:
    def statement(values: Values, line: int) -> None:
        if compare(left(values, line), right(values, line)):
            body(values, line)

    return statement


LARGEST_VALUE = 10**12
"""Maximum absolute value. `c = c * c` in loops gives numbers of thousands of digits, which Python refuses to write."""
MOST_DIGITS = 6
"""Maximum number of digits of a number in a response; longer numbers are not operands."""


def _parse_assignment(words: Line) -> Statement | None:
    is_assignment = len(words) in (3, 5) and words[0] in KNOWN_NAMES - {"v"} and words[1] == "="
    if not is_assignment or not _is_operand(words[2]):
        return None
    # operands are compiled once, so that a cached line runs without parsing
    target, left = words[0], _read(words[2])
    if len(words) == 3:

        def copy(values: Values, line: int) -> None:
            values[target] = left(values, line)

        return copy
    if words[3] not in ARITHMETIC or not _is_operand(words[4]):
        return None
    compute, right = ARITHMETIC[words[3]], _read(words[4])

    def assign(values: Values, line: int) -> None:
        first, second = left(values, line), right(values, line)
        if isinstance(first, list) or isinstance(second, list):  # in Python, list * number would repeat the list
            raise TypeError("a list is no operand")
        result = compute(first, second)
        if abs(result) > LARGEST_VALUE:
            raise ProgramError(line, "the number is too large")
        values[target] = result

    return assign


def _is_operand(word: str) -> bool:
    return word in KNOWN_NAMES or (word.isdecimal() and len(word) <= MOST_DIGITS)


def _read(word: str) -> Operand:
    if word.isdecimal():
        number = int(word)
        return lambda values, line: number

    def value(values: Values, line: int) -> Any:
        if word not in values:
            raise ProgramError(line, f"{word} is not defined")
        return values[word]

    return value
