"""Metrics of rlhf_lab/packs/judging/mt_bench/."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

MT_BENCH = (
    Metric(
        "mt_bench/score",
        "mean grade of both turns, 1 to 10; a turn without a grade is left out",
        title="MT-Bench score",
        better="higher",
        column="MT-Bench",
    ),
    Metric("mt_bench/turn_1", "mean grade of the first turn", title="first turn", better="higher", column="turn 1"),
    Metric("mt_bench/turn_2", "mean grade of the second turn", title="second turn", better="higher", column="turn 2"),
    Metric("mt_bench/score/<category>", "mean grade of both turns of the questions of one category", better="higher"),
    Metric("mt_bench/refused", "fraction of turns without a grade because the judge refused", better="lower"),
    Metric("mt_bench/truncated", "fraction of turns without a grade because the answer was cut", better="lower"),
    Metric("mt_bench/invalid", "fraction of turns without a grade because the answer has no valid one", better="lower"),
    Metric("mt_bench/questions", "number of questions"),
)
"""Metrics of mt_bench.py."""
