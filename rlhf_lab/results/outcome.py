"""What a tracker is told of a finished stage: its numbers, its policies with intervals, replies side by side."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rlhf_lab.results.rundir import Run, read_run
from rlhf_lab.results.samples import pick_samples
from rlhf_lab.trackers.tracker import Outcome, Table


def outcome(folder: Path) -> Outcome:
    """Read from the run directory; a stage that failed has what it got to."""
    run = read_run(folder)
    last = run.policies[-1].metrics if run.policies else {}
    found = {**last, **run.results, **run.cost}
    tables = {"policies": _policies(run), "samples": _samples(run)}
    return Outcome(
        final={name: estimate.mean for name, estimate in found.items() if math.isfinite(estimate.mean)},
        tables={name: table for name, table in tables.items() if table.rows},
    )


def _policies(run: Run) -> Table:
    rows = [
        [policy.name, name, *map(_finite, (found.mean, found.low, found.high)), found.n]
        for policy in run.policies
        for name, found in policy.metrics.items()
    ]
    return Table(["policy", "metric", "mean", "low", "high", "n"], rows)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _samples(run: Run) -> Table:
    """A prompt in each row, the first reply of each policy in its column."""
    picked = pick_samples(run)
    rows: list[list[Any]] = [
        [entry["text"], *(replies[0]["text"] if replies else "" for replies in entry["replies"])]
        for entry in picked["prompts"]
    ]
    return Table(["prompt", *picked["policies"]], rows)
