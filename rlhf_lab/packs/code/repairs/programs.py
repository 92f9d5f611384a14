"""Programs of a small language as sequences of words. Each name, number and sign is a separate word and token.

    line 1 : d = a + 3                  # plus 3
    line 2 : if d > b : d = d - 2       # minus 2 above b
    line 3 : for x in v : d = d max x
    return d

`a` and `b` are numbers, `v` is a list of numbers. The first name of an expression is the name that the previous line
defined, so the correct name follows from the program. A comment describes the correct operation of its line in words.
Not every line has a comment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

Line = tuple[str, ...]
"""Words of a line."""
Inputs = Mapping[str, Any]
"""Values of the parameters by name."""

PARAMETERS = ("a", "b", "v")
LOOPED = "x"
"""Variable of a loop over the numbers of `v`."""
NAMES = ("c", "d", "e", "f")
"""Names that lines may define."""
NUMBERS = tuple(str(number) for number in range(1, 6))
OPERATORS = {"+": "plus", "-": "minus", "*": "times", "min": "smaller", "max": "larger"}
"""Words of the operators in comments."""
COMPARISONS = {">": "above", "<": "below", "==": "equal"}
FACTORS = ("2", "3")
"""Factors of multiplications; they are small, so that results stay small."""
OPERATOR_WEIGHTS = {"+": 7, "-": 6, "*": 2, "min": 2, "max": 3}


@dataclass(frozen=True)
class RepairProgram:
    """A program.

    Attributes:
        lines: lines in order, without the return statement.
        result: name that the program returns.
    """

    lines: tuple[Line, ...]
    result: str

    def replaced(self, changes: Mapping[int, Line]) -> RepairProgram:
        """Return the program with some lines replaced; `changes` maps indices from 0 to lines."""
        lines = [changes.get(index, line) for index, line in enumerate(self.lines)]
        return RepairProgram(tuple(lines), self.result)


def draw_program(rng: Random, lines: int) -> RepairProgram:
    """Sample a program with this number of lines."""
    current = "a"
    free = list(NAMES)
    selected: list[Line] = []
    for number in range(lines):
        # the first line is an assignment: conditions and loops update a name that a line has defined
        shapes = {"assignment": 5, "condition": 3 if number else 0, "loop": 2 if number else 0}
        shape = rng.choices(list(shapes), list(shapes.values()))[0]
        if shape == "assignment":
            target = free.pop(rng.randrange(len(free)))
            selected.append((target, "=", *_expression(rng, current)))
            current = target
        elif shape == "condition":
            comparison = rng.choice(list(COMPARISONS)[:2])
            # only > and <; equality is rarely true for random numbers
            condition = ("if", current, comparison, _operand(rng), ":")
            selected.append((*condition, current, "=", *_expression(rng, current)))
        else:
            # no multiplication in loops, because results must stay small
            operator = rng.choice(("+", "-", "max", "min"))
            selected.append(("for", LOOPED, "in", "v", ":", current, "=", current, operator, LOOPED))
    return RepairProgram(tuple(selected), current)


def comment_of(line: Line) -> str:
    """Describe the operation of a line in words: operator and second operand, then the condition.

    In this order each word of a comment has the same distance from the word it refers to, in lines of all shapes. A
    model with two layers can learn to compare them.
    """
    head, body = split_line(line)
    operator, operand = body[-2:]
    comment = [OPERATORS[operator], operand]
    if head and head[0] == "if":
        comment += [COMPARISONS[head[2]], head[3]]
    return " ".join(comment)


def split_line(line: Line) -> tuple[Line, Line]:
    """Split a line into its head, including the colon, and its assignment. The head is empty if there is no colon."""
    if ":" not in line:
        return (), line
    colon = line.index(":")
    return line[: colon + 1], line[colon + 1 :]


def numbered(number: int, line: Line) -> str:
    """Format a line for prompts and responses. `number` is the index from 0; the text counts from 1."""
    return f"line {number + 1} : {' '.join(line)}"


def number_as_words(value: int | float) -> str:
    """Format a number as words. The sign is a separate word, so that 3 and -3 share a token."""
    return f"- {-value}" if value < 0 else str(value)


def spell_inputs(inputs: Inputs) -> str:
    """Format inputs for a prompt, such as `a 3 , b 5 , v 1 2`."""
    spelled = []
    for name, value in inputs.items():
        numbers = value if isinstance(value, Sequence) else [value]
        words = [number_as_words(number) for number in numbers]
        spelled.append(" ".join([name, *words]))
    return " , ".join(spelled)


def draw_inputs(rng: Random) -> dict[str, Any]:
    """Sample inputs: digits for `a` and `b`, two or three digits for `v`."""
    a, b = rng.randint(0, 9), rng.randint(0, 9)
    length = rng.randint(2, 3)
    return {"a": a, "b": b, "v": [rng.randint(0, 9) for _ in range(length)]}


def _expression(rng: Random, current: str) -> Line:
    operator = rng.choices(list(OPERATOR_WEIGHTS), list(OPERATOR_WEIGHTS.values()))[0]
    return current, operator, rng.choice(FACTORS) if operator == "*" else _operand(rng)


def _operand(rng: Random) -> str:
    return rng.choice(NUMBERS) if rng.random() < 0.7 else "b"
