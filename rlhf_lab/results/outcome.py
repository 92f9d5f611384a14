"""What a tracker receives when a stage ends: its numbers, its policies with intervals, replies side by side."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rlhf_lab.results.rundir import Run, read_run
from rlhf_lab.results.samples import pick_samples
from rlhf_lab.results.wording import judged_title
from rlhf_lab.trackers.tracker import Outcome, Table


def outcome(folder: Path) -> Outcome:
    """The outcome of a run directory; a stage that failed has what it got to."""
    run = read_run(folder)
    last_policy = run.policies[-1].metrics if run.policies else {}
    metrics = {**last_policy, **run.results, **run.cost}
    tables = {"policies": _policies_table(run), "samples": _samples_table(run)}
    return Outcome(
        final={name: estimate.mean for name, estimate in metrics.items() if math.isfinite(estimate.mean)},
        tables={name: table for name, table in tables.items() if table.rows},
    )


def _policies_table(run: Run) -> Table:
    rows: list[list[Any]] = []
    for policy in run.policies:
        for name, estimate in policy.metrics.items():
            interval = [_finite_or_none(value) for value in (estimate.mean, estimate.low, estimate.high)]
            rows.append([policy.name, name, *interval, estimate.n, judged_title(name, run.has_gold)])
    return Table(["policy", "metric", "mean", "low", "high", "n", "title"], rows)


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _samples_table(run: Run) -> Table:
    """A prompt in each row, the first reply of each policy in its column."""
    samples = pick_samples(run)
    rows: list[list[Any]] = []
    for entry in samples["prompts"]:
        first_replies = [replies[0]["text"] if replies else "" for replies in entry["replies"]]
        rows.append([entry["text"], *first_replies])
    return Table(["prompt", *samples["policies"]], rows)
