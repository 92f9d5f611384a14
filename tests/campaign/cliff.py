"""The p-value of a difference that hardly varies, as a function of how much it does: the rule before, and the rule."""

from __future__ import annotations

import math

import numpy as np
from covering import Table
from judging import compare
from scipy import stats

JITTERS = (0.0, 1e-12, 1e-9, 1e-6, 1e-4, 1e-3, 1e-2, 1e-1)
PATTERN = np.array([1.0, -0.5, -0.5, 0.3, -0.3, 0.6, -0.6, 0.2, -0.2, 0.0])
"""Pattern by which the differences of the seeds vary, in jitters."""
TOKENS, DIFFERENCE = 31.5, -3.04
"""An evaluation of one policy and what shorter prompts add to it, tokens; the audit's example."""
RUN_ERROR = 0.5
COUNTS = (3, 10)


def p_before(differences_S: np.ndarray) -> float:
    """The rule before: an exact sign-flip test of equal differences, a t test of others."""
    mean, count = float(differences_S.mean()), len(differences_S)
    error = float(differences_S.std(ddof=1)) / math.sqrt(count)
    if error > 1e-12 * max(1.0, abs(mean)):
        return float(2 * stats.t.sf(abs(mean) / error, count - 1))
    return 2.0 ** (1 - count) if mean else 1.0


def p_now(differences_S: np.ndarray, run_error: float) -> float:
    base_S = np.full(differences_S.size, TOKENS)
    errors_S = np.full(differences_S.size, run_error)
    return compare(base_S + differences_S, base_S, errors_S, errors_S).p_value


def cliff() -> Table:
    rows, p_values = [], {}
    for jitter in JITTERS:
        cells = []
        for count in COUNTS:
            differences_S = DIFFERENCE + jitter * PATTERN[:count]
            cells += [p_before(differences_S), p_now(differences_S, math.nan), p_now(differences_S, RUN_ERROR)]
        p_values[jitter] = cells
        rows.append((f"{jitter:g}", *map(p_cell, cells)))
    still, moved = p_values[0.0], p_values[1e-9]
    return Table(
        name="A difference that hardly varies",
        about=(
            f"p of a difference of {DIFFERENCE:g} tokens in {TOKENS:g} whose seeds vary by the jitter, in a fixed "
            "pattern. Before: sign flips where nothing varies, a t test elsewhere. Now: the spread is not taken below "
            f"a thousandth of the values, or below a tenth of the run's own error of {RUN_ERROR:g} where it states "
            "one."
        ),
        header=(
            "jitter, tokens",
            *(f"{rule}, {n} seeds" for n in COUNTS for rule in ("before", "now, no run error", "now, with run error")),
        ),
        rows=tuple(rows),
        findings=(
            f"A difference of {DIFFERENCE:g} tokens in three of three seeds had p = {p_cell(still[0])}, and "
            f"{p_cell(moved[0])} with a jitter of 1e-9; now it has {p_cell(still[1])} and {p_cell(moved[1])} "
            f"({p_cell(still[2])} and {p_cell(moved[2])} where runs state an error of {RUN_ERROR:g}).",
        ),
    )


def outcome_cliff() -> Table:
    """The same of outcomes: all seeds differ, or all but one."""
    rows = []
    for count in (3, 5, 10):
        cells = []
        for ones in (count, count - 1):
            a_S = (np.arange(count) < ones).astype(float)
            none_S = np.full(count, np.nan)
            differences_S = a_S - np.zeros(count)
            cells += [p_before(differences_S), compare(a_S, np.zeros(count), none_S, none_S).p_value]
        rows.append((str(count), *map(p_cell, cells)))
    return Table(
        name="Outcomes that hardly vary",
        about="p of an outcome of 0 in every seed of the baseline and 1 in all seeds of the level, or in all but one.",
        header=("seeds", "all, before", "all, now", "all but one, before", "all but one, now"),
        rows=tuple(rows),
    )


def p_cell(p: float) -> str:
    return f"{p:.2g}" if p >= 1e-4 else f"{p:.0e}"
