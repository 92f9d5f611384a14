"""Numbers that two runs stored with their intervals but without rows, such as those of reward models."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlhf_lab.reports.comparison.compare import Side
from rlhf_lab.reports.comparison.scales import mismatches
from rlhf_lab.reports.reward.card import SKIPPED
from rlhf_lab.results.wording import compact, judged_title, metric_note, p_text
from rlhf_lab.statistics.inference import Estimate, unpaired_from_intervals

COSTS = ("seconds", "peak_gib", "generated_tokens", "parameters/trained", "checkpoint_mib")
"""Metrics of cost, which have a separate table."""

Stored = tuple[str, str, str, str, str]
"""(metric, A, B, test, note)"""


def stored_numbers(a: Side, b: Side, tested: Sequence[str]) -> list[tuple[Stored, bool]]:
    """Return the numbers that both runs stored and that no test of responses covers.

    Each comes with True if one of the two numbers has an interval.
    """
    estimates_a = _stored_estimates(a)
    estimates_b = _stored_estimates(b)
    scale_mismatches = mismatches(a.run, b.run)
    has_gold = a.run.has_gold and b.run.has_gold
    rows: list[tuple[Stored, bool]] = []
    for name, of_a in estimates_a.items():
        if name not in estimates_b or name in (*tested, *COSTS) or name.startswith(SKIPPED):
            continue
        of_b = estimates_b[name]
        if math.isnan(of_a.mean + of_b.mean):
            continue
        comparable = not any(mismatch.covers(name) for mismatch in scale_mismatches)
        test = _unpaired_test(of_a, of_b) if comparable else "–"
        row = (judged_title(name, has_gold), compact(of_a), compact(of_b), test, metric_note(name))
        has_interval = bool(of_a.n or of_b.n)
        rows.append((row, has_interval))
    return rows


def stored_conclusion(a: Side, b: Side, stored: Sequence[tuple[Stored, bool]]) -> str:
    """Return the first tested number of runs that have no responses to compare, such as reward models."""
    sentence = f"`{a.name}` and `{b.name}` share no metric of responses with the same scale."
    for (title, of_a, of_b, test, _), has_interval in stored:
        if has_interval and test not in ("", "–"):
            return f"{sentence} The first number that both stored is {title}: {of_a} and {of_b}, {test}."
    return f"{sentence} No number that both stored can be tested."


def _stored_estimates(side: Side) -> dict[str, Estimate]:
    policy = next((policy for policy in side.run.policies if policy.name == side.policy), None)
    return {**side.run.results, **(policy.metrics if policy else {})}


def _unpaired_test(a: Estimate, b: Estimate) -> str:
    """Return the result of an unpaired test; with rows of both sides, a paired test would have more power."""
    if a.mean == b.mean:
        return "equal"
    z, p_value = unpaired_from_intervals(a, b)
    return "" if math.isnan(z) else f"unpaired z {compact(z)}, p {p_text(p_value)}"
