"""A calculator as a tool of the reward: which of a reply's equations hold. No part of the text is executed.

Left out: percentages, powers, units, numbers in words, and equations over several lines.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np

from rlhf_lab.core.types import RewardBatch
from rlhf_lab.environments.maths.expressions import decimals_of, evaluate, tokens_of
from rlhf_lab.rewards.rules.settings import Calculator
from rlhf_lab.training.run import Run

TIMES = re.compile(r"(?<=[0-9)])[ \t]*x[ \t]*(?=[0-9($])")
"""An x between two numbers is a multiplication sign."""
BULLET = re.compile(r"^[ \t]*[-*•][ \t]+", re.MULTILINE)
"""A list marker, which would read as a minus or times sign."""
RUN = re.compile(r"[-0-9.,()+*/×÷−$ \t=]+")
"""Text that may hold equations: nothing but numbers, operators and equals signs."""
PUNCTUATION = re.compile(r"[.,](?:[ \t]+|$)")
"""The end of a sentence or clause, as opposed to a decimal point or a comma between thousands."""
OPERATOR = re.compile(r"[0-9) ][ \t]*[-+*/×÷−]")
"""An operator after an operand; a sign at the very beginning is none."""
LONGEST = 200
"""Characters of the longest side that is computed."""


class CalculatorReward:
    """Scores a reply by the share of its equations that hold."""

    def __init__(self, no_equation: float | None):
        self.no_equation = math.nan if no_equation is None else no_equation

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        """The part "equations" is how many there are."""
        outcomes = [list(equations(text)) for text in responses]
        shares = [sum(holds) / len(holds) if holds else self.no_equation for holds in outcomes]
        counts = np.array([len(holds) for holds in outcomes], dtype=np.float64)
        return RewardBatch(np.array(shares), {"equations": counts})


def equations(text: str) -> Iterator[bool]:
    """Whether each "left = right" of a text holds. A chain a = b = c is two; a side that is no expression is none."""
    text = TIMES.sub("*", BULLET.sub("", text))
    for run in RUN.findall(text):
        for left, right in pairwise(run.split("=")):
            left = PUNCTUATION.split(left.strip())[-1]
            right = PUNCTUATION.split(right.strip())[0]
            left_value, right_value = _evaluate_side(left), _evaluate_side(right)
            if left_value is None or right_value is None:
                continue
            if OPERATOR.search(left) or OPERATOR.search(right):  # "5 = 5" computes nothing
                yield _are_equal(left_value, right_value, right)


def _evaluate_side(text: str) -> Fraction | None:
    """The value of one side of an equation; None when it is no expression, or too long."""
    tokens = tokens_of(text) if 0 < len(text) <= LONGEST else None
    return evaluate(tokens) if tokens else None


def _are_equal(left: Fraction, right: Fraction, right_text: str) -> bool:
    """Equal, or equal after rounding to the decimals that the right side is written with."""
    decimals = decimals_of(right_text.strip()) if not OPERATOR.search(right_text) else 0
    return left == right or (decimals > 0 and abs(left - right) <= Fraction(1, 2 * 10**decimals))


def build(settings: Calculator, run: Run) -> CalculatorReward:
    del run
    return CalculatorReward(settings.no_equation)
