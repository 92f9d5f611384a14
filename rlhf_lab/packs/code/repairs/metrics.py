"""Metrics of the repairs environment (`data=repairs`), in addition to the metrics that all environments have."""

from __future__ import annotations

from rlhf_lab.core.measures import Measure

REPAIRS = (
    Measure(
        "solved_within/<rounds>",
        "fraction of episodes whose program passes all hidden tests within this number of rounds (data=repairs)",
        kind="rate",
        by_category=True,
    ),
    Measure(
        "gain_by_round/<rounds>",
        "solved_within/<rounds> minus solved_within/1, from the same episodes (data=repairs)",
        better="higher",
        by_category=True,
    ),
)
"""Measures of world.py."""
