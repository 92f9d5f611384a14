"""The numbers of `code_bench`: pass@k of draws that can be graded, which program of an attempt counts."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from rlhf_lab.packs.agents.benchmarks.code_bench import pass_at, passes


def draws(task: str, template: str, *outcomes: float | None) -> list[dict]:
    return [{"prompt_id": task, "template": template, "success": outcome} for outcome in outcomes]


def test_pass_at_k_of_programs_that_nobody_can_grade():
    """Tasks with (right, wrong, unknown), (right, unknown) and (wrong, wrong): pass@1 is ½, 1, 0; pass@2 is 1, –, 0."""
    rows = [*draws("a", "sum", 1.0, 0.0, None), *draws("b", "sort", 1.0, None), *draws("c", "max", 0.0, 0.0)]
    found = pass_at(rows, [1, 2, 3])
    assert found["pass@1"].mean == (1 / 2 + 1 + 0) / 3
    assert found["pass@2"].mean == 1 / 2 and found["pass@2"].unscored == 1
    assert np.isnan(found["pass@3"].mean)
    assert pass_at([], [1]) == {}


def test_intervals_of_pass_at_k_count_templates_and_known_draws():
    """Four tasks with 1/2 each, of two known draws: without spread n = 8, and ½ ± z/2·√(1/(8 + z²)) with z = 1.96.

    Tasks of one template are one cluster, whose interval is [0, 1].
    """
    rows = [row for number in range(4) for row in draws(f"t{number}", f"kind {number}", 1.0, 0.0, None)]
    found = pass_at(rows, [1])["pass@1"]
    half_width = 1.96 / 2 * (1 / (8 + 1.96**2)) ** 0.5
    assert (found.low, found.high) == pytest.approx((0.5 - half_width, 0.5 + half_width), abs=1e-4)
    equal = pass_at([{**row, "template": "one"} for row in rows], [1])["pass@1"]
    assert (equal.clusters, equal.low, equal.high) == (1, 0.0, 1.0)


@pytest.mark.parametrize(
    ("status", "outcome"), [("passed", 1.0), ("failed", 0.0), ("timeout", 0.0), ("unsupported", None)]
)
def test_what_counts_as_passed(status, outcome):
    assert passes(SimpleNamespace(status=status)) == outcome
    assert passes(None) is None
