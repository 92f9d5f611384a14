"""Calculator that checks the equations of a response. No part of the text is executed.

Percentages, powers, numbers in words, and equations over several lines are skipped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np

from rlhf_lab.core.types import RewardBatch
from rlhf_lab.environments.maths.expressions import decimals_of, evaluate, format_or_none, tokens_of
from rlhf_lab.rewards.rules.settings import Calculator
from rlhf_lab.training.run import Run

TIMES = re.compile(r"(?<=[0-9)])[ \t]*x[ \t]*(?=[0-9($])|\\(?:times|cdot)\b")
"""A multiplication sign of LaTeX, or an x between two numbers."""
BULLET = re.compile(r"^[ \t]*[-*•][ \t]+", re.MULTILINE)
"""A list marker, which would read as a minus or times sign."""
RUN = re.compile(r"[-0-9.,()+*/×÷−$ \t=]+")
"""Text that may contain equations: only numbers, operators and equals signs."""
CONTINUED = re.compile(r"(?:[\w^!}]|\d:|\\[a-zA-Z]+[ \t]*)$")
"""End of a text whose expression goes on with the next number: "sqrt" before "(16) + 2", "3^" before "2 + 1"."""
MODIFIER = re.compile(r"\s*(?:\\?%|percent\b|\^|[Rr](?:em(?:ainder)?)?\b)")
"""Text that changes the value of the number before it."""
PUNCTUATION = re.compile(r"[.,](?:[ \t]+|$)")
"""The end of a sentence or clause, as opposed to a decimal point or a comma between thousands."""
OPERATOR = re.compile(r"[0-9) ][ \t]*[-+*/×÷−]")
"""An operator after an operand; a sign at the start of an expression does not match."""
LONGEST = 200
"""Maximum characters of one side of an equation; longer sides are skipped."""


class CalculatorReward:
    def __init__(self, no_equation: float | None):
        self.no_equation = math.nan if no_equation is None else no_equation

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        """Score responses. The part "equations" is the number of equations in each response."""
        outcomes = [list(equations(text)) for text in responses]
        fractions = [sum(holds) / len(holds) if holds else self.no_equation for holds in outcomes]
        counts = np.array([len(holds) for holds in outcomes], dtype=np.float64)
        return RewardBatch(np.array(fractions), {"equations": counts})


def equations(text: str) -> Iterator[bool]:
    """Yield for each "left = right" of a text whether it is correct.

    A chain a = b = c counts as two equations. A side that is not an expression is skipped.
    """
    for left_value, right_value, right in _sides(text):
        yield _are_equal(left_value, right_value, right)


def with_results(text: str) -> str:
    """Append the calculator's results to each line that has equations: "5 + 3 = 9" becomes "5 + 3 = 9 [8]".

    The result is the value of an equation's left side. The number of lines stays the same.
    """
    lines = []
    for line in text.split("\n"):
        results = [shown for left, _, _ in _sides(line) if (shown := format_or_none(left))]
        lines.append(f"{line.rstrip()} [{', '.join(results)}]" if results else line)
    return "\n".join(lines)


def _sides(text: str) -> Iterator[tuple[Fraction, Fraction, str]]:
    """Yield (value of the left side, value of the right side, right side) of each equation of a text."""
    # List markers are removed first, because "-" and "*" would be read as operators.
    text = TIMES.sub("*", BULLET.sub("", text)).replace("\\div", "/")
    for run in (run for run in RUN.finditer(text) if "=" in run[0]):
        clauses = [PUNCTUATION.split(side.strip()) for side in run[0].split("=")]
        # Words and signs next to the run may belong to its first or last expression, which is then incomplete.
        expression = run[0].lstrip()
        before = text[: run.end() - len(expression)].rpartition("\n")[2][-LONGEST:]
        if CONTINUED.search(before) or (before.strip() and expression.startswith(("- ", "− "))):
            clauses[0][0] = ""
        if MODIFIER.match(text, run.end()):
            clauses[-1][-1] = ""
        for left_clauses, right_clauses in pairwise(clauses):
            # Only the last clause before an equals sign and the first clause after it belong to the equation.
            left, right = left_clauses[-1], right_clauses[0]
            left_value, right_value = _evaluate_side(left), _evaluate_side(right)
            if left_value is None or right_value is None:
                continue
            if OPERATOR.search(left) or OPERATOR.search(right):  # "5 = 5" computes nothing
                yield left_value, right_value, right


def _evaluate_side(text: str) -> Fraction | None:
    tokens = tokens_of(text) if 0 < len(text) <= LONGEST else None
    return evaluate(tokens) if tokens else None


def _are_equal(left: Fraction, right: Fraction, right_text: str) -> bool:
    """Return True if both sides are equal, or equal after rounding to the decimals of the right side."""
    # Only a single number is a rounded result; an expression on the right is exact.
    decimals = decimals_of(right_text.strip()) if not OPERATOR.search(right_text) else 0
    return left == right or (decimals > 0 and abs(left - right) <= Fraction(1, 2 * 10**decimals))


def build(settings: Calculator, run: Run) -> CalculatorReward:
    del run
    return CalculatorReward(settings.no_equation)
