"""A calculator as a tool of the reward: which of a reply's equations hold. Nothing of the text is executed.

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
BULLET = re.compile(r"^[ \t]*[-*•][ \t]+", re.MULTILINE)
RUN = re.compile(r"[-0-9.,()+*/×÷−$ \t=]+")
PUNCTUATION = re.compile(r"[.,](?:[ \t]+|$)")
OPERATOR = re.compile(r"[0-9) ][ \t]*[-+*/×÷−]")
LONGEST = 200
"""Characters of the longest side that is computed."""


class CalculatorReward:
    """Scores a reply by the share of its equations that hold."""

    def __init__(self, no_equation: float | None):
        self.no_equation = math.nan if no_equation is None else no_equation

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        """The part "equations" is how many there are."""
        found = [list(equations(text)) for text in responses]
        share = [sum(holds) / len(holds) if holds else self.no_equation for holds in found]
        return RewardBatch(np.array(share), {"equations": np.array([len(holds) for holds in found], dtype=np.float64)})


def equations(text: str) -> Iterator[bool]:
    """Whether each "left = right" of a text holds. A chain a = b = c is two; a side that is no expression is none."""
    text = TIMES.sub("*", BULLET.sub("", text))
    for run in RUN.findall(text):
        for left, right in pairwise(run.split("=")):
            left, right = PUNCTUATION.split(left.strip())[-1], PUNCTUATION.split(right.strip())[0]
            values = _value(left), _value(right)
            if values[0] is not None and values[1] is not None and (OPERATOR.search(left) or OPERATOR.search(right)):
                yield _same(values[0], values[1], right)


def _value(text: str) -> Fraction | None:
    tokens = tokens_of(text) if 0 < len(text) <= LONGEST else None
    return evaluate(tokens) if tokens else None


def _same(left: Fraction, right: Fraction, written: str) -> bool:
    """Equal, or equal after rounding to the decimals that the right side is written with."""
    decimals = decimals_of(written.strip()) if not OPERATOR.search(written) else 0
    return left == right or (decimals > 0 and abs(left - right) <= Fraction(1, 2 * 10**decimals))


def build(settings: Calculator, run: Run) -> CalculatorReward:
    del run
    return CalculatorReward(settings.no_equation)
