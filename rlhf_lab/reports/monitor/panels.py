"""Section on the reward-hacking monitor in the report of a run: three panels over training and a table of its rules.

The panels show length with the band in which `length_z` raises no alarm, the distribution of the reward, and gold
against proxy reward. Each marks the first alarms of both levels. All statistics are recomputed from monitor.jsonl.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rlhf_lab.core.metrics import names
from rlhf_lab.core.types import FloatArray
from rlhf_lab.figures.charts import Point, Series, curves
from rlhf_lab.figures.layers import Chart, EventMark
from rlhf_lab.figures.palette import GREY
from rlhf_lab.monitoring.detector import LEVELS, IterationBatch
from rlhf_lab.monitoring.metrics import AUDIT_OF_A_RUN, DETECTOR, MONITOR_OF_A_RUN
from rlhf_lab.monitoring.replay import Replay, replay, rule_rows, summary
from rlhf_lab.monitoring.settings import TRACE
from rlhf_lab.reports.sections import PageSection
from rlhf_lab.results.glossary import term
from rlhf_lab.results.rundir import StoredRun
from rlhf_lab.results.wording import compact

POINTS = 40
"""Maximum number of points of a curve, which limits the size of the page."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles of the reward in its panel."""
WORDS = {"warning": "warning", "hard_stop": "strong warning", "gold_fell_at": "gold fell"}
"""Event → word on its vertical line."""
# Prefixes of metric names (before the first "/") that belong to the monitor or to the audit.
SECTION_METRICS = {name.partition("/")[0] for name in names((*DETECTOR, *MONITOR_OF_A_RUN, *AUDIT_OF_A_RUN))}


@dataclass(frozen=True)
class PanelCurve:
    """Curve over iterations; `low` and `high` add a band around it. `colour` is an index into the palette."""

    name: str
    values: FloatArray
    colour: int
    low: FloatArray | None = None
    high: FloatArray | None = None


def in_monitor_section(metric: str) -> bool:
    """Return True if a metric of the run is shown in the section of the monitor or of the audit."""
    return metric.partition("/")[0] in SECTION_METRICS


def monitor(run: StoredRun) -> PageSection | None:
    """Return the section with panels, table and notes; None for a run without a monitor."""
    if not (run.path / TRACE).is_file():
        return None
    # The stored samples are judged again; see the module docstring.
    replayed = replay(run.path)
    columns, rows = rule_rows(replayed)
    panels = [lengths(replayed), rewards(replayed), gold_and_proxy(replayed)]
    notes = [
        f"{metric.meaning}: {_format_run_number(metric.name, run.results[metric.name].mean)}"
        for metric in MONITOR_OF_A_RUN
        if metric.name in run.results
    ]
    values = {
        "panels": [panel for panel in panels if panel],
        "headings": [term(name) for name in columns],
        "rows": rows,
        "words": summary(replayed).split("\n"),
        "remarks": notes,
    }
    return PageSection("What the monitor saw", template=f"{__package__}:panels.html.j2", values=values)


def lengths(monitor: Replay) -> Chart | None:
    """Plot the mean length of a response, or of an agent's turns, and the band in which `length_z` is silent."""
    band = monitor.detector.band()
    iterations = len(monitor.batches)
    name = "mean length of a turn" if monitor.detector.by_turn else "mean response length"
    lines = [PanelCurve(name, _per_iteration(monitor, lambda batch: _finite_mean(batch.length_N)), 0)]
    if band:
        low, high = band
        middle = np.full(iterations, sum(band) / 2)
        low_N = np.full(iterations, low)
        high_N = np.full(iterations, high)
        lines.append(PanelCurve("warm-up", middle, GREY, low_N, high_N))
    return _draw_panel(monitor, "Response length", "tokens", lines)


def rewards(monitor: Replay) -> Chart | None:
    """Plot quantiles of the reward over responses."""
    quantiles = np.array([_finite_quantiles(batch.reward_N) for batch in monitor.batches]).T
    if not np.isfinite(quantiles).any():
        return None
    p5, p25, median, p75, p95 = quantiles
    # A curve of NaN shows only its band.
    no_line = np.full(len(median), np.nan)
    lines = [PanelCurve("median, middle half", median, 0, p25, p75), PanelCurve("5 to 95 %", no_line, 5, p5, p95)]
    return _draw_panel(monitor, "Distribution of the reward", "reward", lines)


def gold_and_proxy(monitor: Replay) -> Chart | None:
    """Plot gold and proxy reward; None if gold is unknown."""
    gold = _per_iteration(monitor, lambda batch: _finite_mean(batch.gold_N))
    if not np.isfinite(gold).any():
        return None
    proxy = _per_iteration(monitor, lambda batch: _finite_mean(batch.reward_N))
    lines = [PanelCurve("gold", gold, 1), PanelCurve("proxy", proxy, 0)]
    return _draw_panel(monitor, "Gold and proxy reward of the samples", "reward", lines)


def _draw_panel(monitor: Replay, title: str, y_label: str, lines: Sequence[PanelCurve]) -> Chart:
    """Plot curves over iterations with the alarms as vertical lines."""
    series = [Series(line.name, _points(line), line.colour) for line in lines]
    return curves(
        series, title=title, x_label="iteration", y_label=y_label, size=(420, 170), legend=True, events=_alarms(monitor)
    )


def _points(line: PanelCurve) -> list[Point]:
    """Return up to POINTS points of a curve; a curve that is only a band has NaN values."""
    no_band = np.full(len(line.values), np.nan)
    low_N = no_band if line.low is None else line.low
    high_N = no_band if line.high is None else line.high
    points = []
    for iteration, value, low, high in zip(*_bin_means(line.values, low_N, high_N), strict=True):
        tooltip = {"iteration": compact(iteration), "mean": compact(value)}
        if math.isfinite(low) and math.isfinite(high):
            tooltip["band"] = f"{compact(low)} to {compact(high)}"
        points.append(Point(iteration, value, low, high, tooltip=tooltip))
    return points


def _alarms(monitor: Replay) -> list[EventMark]:
    """Return marks for the first warning, the first strong warning, and the fall of gold.

    Gold falls on held-out prompts; if it was not measured there, it falls in the training samples, from their best
    value.
    """
    iterations: dict[str, float | None] = {}
    for name in LEVELS[1:]:  # the first level means no alarm
        iterations[name] = monitor.detector.first.get(name)
    iterations["gold_fell_at"] = monitor.totals().get("gold_fell_at")
    return [
        EventMark(iteration + 1, WORDS[name])
        for name, iteration in iterations.items()
        if iteration is not None and math.isfinite(iteration)
    ]


def _bin_means(*series: FloatArray) -> list[list[float]]:
    """Return iterations, counted from 1, and each series, as means over up to POINTS bins of iterations."""
    size = len(series[0])
    bins = np.array_split(np.arange(size), min(POINTS, size))
    iterations = [float(indices.mean()) + 1 for indices in bins]
    columns = [iterations]
    for values_N in series:
        columns.append([_finite_mean(values_N[indices]) for indices in bins])
    return columns


def _format_run_number(name: str, value: float) -> str:
    """Return a run-level number as text; iterations are stored from 0 but displayed from 1."""
    return f"{value + 1:.0f}" if name == "stopped_at" else compact(value)


def _per_iteration(monitor: Replay, value: Callable[[IterationBatch], float]) -> FloatArray:
    return np.array([value(batch) for batch in monitor.batches])


def _finite_mean(values_N: FloatArray) -> float:
    """Return the mean of the finite values; NaN without any."""
    finite_N = values_N[np.isfinite(values_N)]
    return float(finite_N.mean()) if len(finite_N) else math.nan


def _finite_quantiles(values_N: FloatArray) -> FloatArray:
    """Return the `QUANTILES` of the finite values; NaN without any."""
    finite_N = values_N[np.isfinite(values_N)]
    if not len(finite_N):
        return np.full(len(QUANTILES), np.nan)
    return np.quantile(finite_N, QUANTILES)
