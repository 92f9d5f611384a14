"""Measures that a world or an environment returns beside those that the lab knows by name.

`Oracle.measure` and `Environment.grade` return columns by name. Those that every world may have (gold, correct, …) are
metrics of their own; any other one is logged as `measure/<name>`, by evaluations, rollouts and re-scoring alike.
"""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_lab.core.arrays import FloatArray

PREFIX = "measure/"
"""Begins the name of a measure that the lab does not know, in evaluation.jsonl and in metrics."""
KNOWN = ("gold", "verbose", "garble", "correct", "verified", "calls", "phone_error", "audio_seconds")
KNOWN_PREFIXES = ("verified/", "solved_within/", "gain_by_round/")


def own_measures(truth: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """The columns that only this world returns, by their logged name; a slash, which names use for levels, is a dot."""
    return {
        f"{PREFIX}{name.replace('/', '.')}": values_N
        for name, values_N in truth.items()
        if name not in KNOWN and not name.startswith(KNOWN_PREFIXES)
    }
