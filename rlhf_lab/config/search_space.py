"""Values that a search over settings may choose (`study.search`). Imports neither torch nor Optuna."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Literal

from rlhf_lab.core.ranges import CheckedSettings

NUMBER = r"[-+]?(?:\d+\.\d+|\.\d+|\d+\.(?!\.)|\d+)(?:[eE][-+]?\d+)?"
INTERVAL = re.compile(rf"(log\s+)?({NUMBER})\.\.({NUMBER})")
FORM = "write LOW..HIGH, log LOW..HIGH or a list of values, such as `log 0.01..0.5` or [8, 16, 32]"
DIGITS = 3
"""Significant digits of a searched number, so that a command with it is short. A range that is narrow compared with its
ends has more: 0.99..0.9999 would otherwise have eleven values."""


@dataclass(frozen=True)
class SearchGoal(CheckedSettings):
    """Metric that a search improves.

    Args:
        metric: name of the metric.
        direction: `higher` or `lower` values are better.
    """

    metric: str
    direction: Literal["higher", "lower"]

    def better(self, value: float, than: float) -> bool:
        """Return True if a value is better than another one."""
        return value > than if self.direction == "higher" else value < than


@dataclass(frozen=True)
class SearchInterval:
    """Numbers between two ends, both included.

    Attributes:
        low, high: the ends.
        log: True to search on a logarithmic scale.
    """

    low: float
    high: float
    log: bool = False

    @property
    def whole(self) -> bool:
        """True if only whole numbers are searched: both ends were written without a decimal point."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def values(self) -> list[Any]:
        """Return the ends, with which the setting is checked before the search starts."""
        return [self.low, self.high]

    def rounded(self, value: float) -> float:
        """Return a value with `DIGITS` significant digits or more, inside the interval."""
        if self.whole:
            return round(value)
        # one more digit for each factor of ten between the ends and the width
        narrowness = max(abs(self.low), abs(self.high)) / (self.high - self.low)
        digits = DIGITS + max(0, math.floor(math.log10(narrowness)))
        return min(max(float(f"{value:.{digits}g}"), self.low), self.high)


@dataclass(frozen=True)
class SearchChoices:
    """List of values without an order."""

    choices: tuple[Any, ...]

    def values(self) -> list[Any]:
        """Return all values, with which the setting is checked before the search starts."""
        return list(self.choices)


Dimension = SearchInterval | SearchChoices


def problem_of(key: str, written: Any) -> str | None:
    """Return what is wrong with the written values of a key; None if they can be searched."""
    where = f"search: {key}={written}"
    if key == "seed":
        return f"{where}: a seed is no setting to choose; all trials use the seed of the command"
    if isinstance(written, list):
        if len(written) < 2 or any(written.count(value) > 1 for value in written):
            return f"{where} needs two different values or more"
        return None
    match = INTERVAL.fullmatch(str(written).strip()) if isinstance(written, str) else None
    if match is None:
        return f"{where} is no range; {FORM}"
    interval = _read_interval(match)
    if not interval.low < interval.high:
        return f"{where} is empty: its first number must be below the second"
    if interval.log and interval.low <= 0:
        return f"{where}: a logarithmic range starts above 0"
    return None


def dimension(written: Any) -> Dimension:
    """Return the values of a key without a problem."""
    if isinstance(written, list):
        return SearchChoices(tuple(written))
    match = INTERVAL.fullmatch(str(written).strip())
    assert match is not None
    return _read_interval(match)


def _read_interval(match: re.Match[str]) -> SearchInterval:
    scale, *ends = match.groups()
    is_whole = all(re.fullmatch(r"[-+]?\d+", end) for end in ends)
    low, high = (int(end) if is_whole else float(end) for end in ends)
    return SearchInterval(low, high, log=scale is not None)
