"""Data that a tracker receives when a stage ends: its numbers, its policies with intervals, responses side by side."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rlhf_lab.results.rundir import StoredRun, read_run
from rlhf_lab.results.samples import pick_samples
from rlhf_lab.results.wording import judged_title
from rlhf_lab.statistics.estimates import finite_or_none
from rlhf_lab.trackers.tracker import StageOutcome, TrackedTable


def outcome(directory: Path) -> StageOutcome:
    """Return the outcome of a run directory; a failed stage has the numbers that it reached."""
    run = read_run(directory)
    last_policy = run.policies[-1].metrics if run.policies else {}
    # Later entries win: the run's own numbers replace those of the policy.
    metrics = {**last_policy, **run.results, **run.cost}
    tables = {"policies": _policies_table(run), "samples": _samples_table(run)}
    final = {name: estimate.mean for name, estimate in metrics.items() if math.isfinite(estimate.mean)}
    return StageOutcome(final=final, tables={name: table for name, table in tables.items() if table.rows})


def _policies_table(run: StoredRun) -> TrackedTable:
    """Return one row per policy and metric."""
    rows: list[list[Any]] = []
    for policy in run.policies:
        for name, estimate in policy.metrics.items():
            interval = [finite_or_none(value) for value in (estimate.mean, estimate.low, estimate.high)]
            rows.append([policy.name, name, *interval, estimate.n, judged_title(name, run.has_gold)])
    return TrackedTable(["policy", "metric", "mean", "low", "high", "n", "title"], rows)


def _samples_table(run: StoredRun) -> TrackedTable:
    """Return one row per prompt, with the first response of each policy in its column."""
    samples = pick_samples(run)
    rows: list[list[Any]] = [
        [entry["text"], *(responses[0]["text"] if responses else "" for responses in entry["replies"])]
        for entry in samples["prompts"]
    ]
    return TrackedTable(["prompt", *samples["policies"]], rows)
