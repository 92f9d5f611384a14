"""Sentences on whether two sides of a comparison can be told apart."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rlhf_lab.results.wording import compact, p_equals, signed
from rlhf_lab.statistics.inference import Comparison, repetitions_to_decide
from rlhf_lab.studies.replication import list_in_words


def distinguishable(side: str, versus: Comparison, p_holm: float) -> str:
    """Return a sentence that says whether a metric is higher or lower with one side, and by how much."""
    direction = "higher" if versus.difference.mean > 0 else "lower"
    return f"It is {direction} with {side} ({signed(versus.difference)}, {p_equals(p_holm)} after Holm)."


def indistinguishable(sides: Mapping[str, Comparison], other: str, *, unit: str = "seed") -> str:
    """Return the sides that cannot be told apart from the other one, and how many seeds would decide it.

    Args:
        sides: label of a side → its difference from the other one.
        other: label of the other side.
        unit: what both sides of a pair have in common: "seed" or "prompt".
    """
    tested = {}
    for side, versus in sides.items():
        if versus.difference.clusters > 1:  # one pair has no standard deviation
            tested[side] = versus
    sentences = []
    if tested:
        names = [f"{side} ({_detectable_clause(versus, unit)})" for side, versus in tested.items()]
        sentences.append(f"Not distinguishable from {other}: {list_in_words(names)}.")
    if untested := [side for side in sides if side not in tested]:
        sentences.append(
            f"Not tested against {other}: {list_in_words(untested)}. "
            f"One shared {unit} cannot tell a difference from noise between {unit}s: use three or more."
        )
    return " ".join(sentences)


def _detectable_clause(versus: Comparison, unit: str) -> str:
    """Return a clause with the observed difference and the minimum detectable one (80 % power).

    For pairs by seed, it also has the number of seeds that would detect the observed difference.
    """
    effect = versus.minimum_detectable_effect
    phrases = [signed(versus.difference)]
    if math.isfinite(effect) and effect > 0:
        phrases.append(f"detectable from {compact(effect)}")
    if unit == "seed" and (needed := repetitions_to_decide(versus)):
        phrases.append(f"about {needed} seeds would find it")
    return ", ".join(phrases)
