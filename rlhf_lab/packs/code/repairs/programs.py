"""Programs of a closed language, as words: every name, number and sign is a word of its own, and a token of its own.

    line 1 : d = a + 3                  # plus 3
    line 2 : if d > b : d = d - 2       # minus 2 above b
    line 3 : for x in v : d = d max x
    return d

`a` and `b` are numbers, `v` is a list of numbers. A line goes on from the name of the line before it, so what the first
name of an expression should be follows from the program. A comment says in words what its line should do; not every
line has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

Line = tuple[str, ...]
"""Words of a line."""
Inputs = Mapping[str, Any]
"""Parameter → value."""

PARAMETERS = ("a", "b", "v")
LOOPED = "x"
"""The name that a loop gives to each number of `v`."""
NAMES = ("c", "d", "e", "f")
"""Names that lines may define."""
NUMBERS = tuple(str(number) for number in range(1, 6))
OPERATORS = {"+": "plus", "-": "minus", "*": "times", "min": "smaller", "max": "larger"}
"""Sign → its word in comments."""
COMPARISONS = {">": "above", "<": "below", "==": "equal"}
FACTORS = ("2", "3")
"""Numbers that a program multiplies by: results stay small."""
OPERATOR_WEIGHTS = {"+": 7, "-": 6, "*": 2, "min": 2, "max": 3}


@dataclass(frozen=True)
class Program:
    """Attributes:
    lines: in order; without the last one, which returns `result`.
    result: the name that is returned.
    """

    lines: tuple[Line, ...]
    result: str

    def replaced(self, changes: Mapping[int, Line]) -> Program:
        """The program with other lines in these places; counted from 0."""
        return Program(tuple(changes.get(i, line) for i, line in enumerate(self.lines)), self.result)


def draw_program(rng: Random, lines: int) -> Program:
    """A program of so many lines."""
    current = "a"
    free = list(NAMES)
    drawn: list[Line] = []
    for number in range(lines):
        shapes = {"assignment": 5, "condition": 3 if number else 0, "loop": 2 if number else 0}
        shape = rng.choices(list(shapes), list(shapes.values()))[0]
        if shape == "assignment":
            target = free.pop(rng.randrange(len(free)))
            drawn.append((target, "=", *_expression(rng, current)))
            current = target
        elif shape == "condition":
            comparison = rng.choice(list(COMPARISONS)[:2])
            condition = ("if", current, comparison, _operand(rng), ":")
            drawn.append((*condition, current, "=", *_expression(rng, current)))
        else:
            operator = rng.choice(("+", "-", "max", "min"))
            drawn.append(("for", LOOPED, "in", "v", ":", current, "=", current, operator, LOOPED))
    return Program(tuple(drawn), current)


def comment_of(line: Line) -> str:
    """What a line should do, in words: operator and second operand, then the condition.

    In this order every word of a comment stands equally far behind the word that it is about, in lines of any shape:
    a model of two layers learns to compare them.
    """
    head, body = split_line(line)
    operator, operand = body[-2:]
    comment = [OPERATORS[operator], operand]
    if head and head[0] == "if":
        comment += [COMPARISONS[head[2]], head[3]]
    return " ".join(comment)


def split_line(line: Line) -> tuple[Line, Line]:
    """(what stands before the colon, with it; the assignment)."""
    if ":" not in line:
        return (), line
    colon = line.index(":")
    return line[: colon + 1], line[colon + 1 :]


def numbered(number: int, line: Line) -> str:
    """A line as it is written in prompts and replies; `number` counts from 0, the text from 1."""
    return f"line {number + 1} : {' '.join(line)}"


def spell(value: int | float) -> str:
    """A number as words: the sign stands alone, so that 3 and - 3 have one token in common."""
    return f"- {-value}" if value < 0 else str(value)


def spell_inputs(inputs: Inputs) -> str:
    values = {name: value if isinstance(value, Sequence) else [value] for name, value in inputs.items()}
    return " , ".join(f"{name} {' '.join(spell(number) for number in values[name])}" for name in values)


def draw_inputs(rng: Random) -> dict[str, Any]:
    return {"a": rng.randint(0, 9), "b": rng.randint(0, 9), "v": [rng.randint(0, 9) for _ in range(rng.randint(2, 3))]}


def _expression(rng: Random, current: str) -> Line:
    operator = rng.choices(list(OPERATOR_WEIGHTS), list(OPERATOR_WEIGHTS.values()))[0]
    return current, operator, rng.choice(FACTORS) if operator == "*" else _operand(rng)


def _operand(rng: Random) -> str:
    return rng.choice(NUMBERS) if rng.random() < 0.7 else "b"
