"""Measures of the world of repairs, beside those that any world may have."""

from __future__ import annotations

from rlhf_lab.core.measures import Measure

REPAIRS = (
    Measure(
        "solved_within/<rounds>",
        "share of episodes whose program after at most so many rounds passes all hidden tests (data=repairs)",
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
"""world.py"""
