"""What the reward-hacking monitor saw, for the report of a run: three panels over training and a line per rule.

Length with the band in which `length_z` is silent, the reward's distribution, and true against learned reward; each
with the first alarms of both levels. Everything is judged again from monitor.jsonl.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rlhf_lab.core.metrics import names
from rlhf_lab.core.types import FloatArray
from rlhf_lab.figures.charts import Point, Series, curves
from rlhf_lab.figures.layers import Chart, Event
from rlhf_lab.figures.palette import GREY
from rlhf_lab.monitoring.detector import LEVELS, Batch
from rlhf_lab.monitoring.metrics import DETECTOR, MONITOR_OF_A_RUN
from rlhf_lab.monitoring.replay import Replay, replay, rule_rows, summary
from rlhf_lab.monitoring.trace import TRACE
from rlhf_lab.reports.sections import PageSection
from rlhf_lab.results.glossary import term
from rlhf_lab.results.rundir import Run
from rlhf_lab.results.wording import compact

POINTS = 40
"""Of a curve: the page stays small however long the run."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
WORDS = {"warning": "warning", "hard_stop": "strong warning", "gold_fall": "gold fell"}
"""Vertical lines → what is written on them."""
# The parts of names before the first "/" that belong to the monitor.
SECTION_METRICS = {name.partition("/")[0] for name in names((*DETECTOR, *MONITOR_OF_A_RUN))}


@dataclass(frozen=True)
class Line:
    """A curve over iterations; with `low` and `high` a band around it. `colour` is an index into the palette."""

    name: str
    values: FloatArray
    colour: int
    low: FloatArray | None = None
    high: FloatArray | None = None


def in_monitor_section(metric: str) -> bool:
    """Whether a metric of the run is shown in this section."""
    return metric.partition("/")[0] in SECTION_METRICS


def monitor(run: Run) -> PageSection | None:
    """Panels, table and remarks; None for a run that was not watched."""
    if not (run.path / TRACE).is_file():
        return None
    replayed = replay(run.path)
    columns, rows = rule_rows(replayed)
    panels = [lengths(replayed), rewards(replayed), gold_and_proxy(replayed)]
    remarks = [
        f"{metric.meaning}: {_format_run_number(metric.name, run.results[metric.name].mean)}"
        for metric in MONITOR_OF_A_RUN
        if metric.name in run.results
    ]
    values = {
        "panels": [panel for panel in panels if panel],
        "headings": [term(name) for name in columns],
        "rows": rows,
        "words": summary(replayed).split("\n"),
        "remarks": remarks,
    }
    return PageSection("What the monitor saw", template=f"{__package__}:panels.html.j2", values=values)


def lengths(monitor: Replay) -> Chart | None:
    """Mean length of a reply or of an agent's turns, and the band in which `length_z` is silent."""
    band = monitor.detector.band()
    iterations = len(monitor.batches)
    name = "mean length of a turn" if monitor.detector.by_turn else "mean reply length"
    lines = [Line(name, _per_iteration(monitor, lambda batch: _finite_mean(batch.length_N)), 0)]
    if band:
        low, high = band
        middle = np.full(iterations, sum(band) / 2)
        lines.append(Line("warm-up", middle, GREY, np.full(iterations, low), np.full(iterations, high)))
    return _draw_panel(monitor, "Reply length", "tokens", lines)


def rewards(monitor: Replay) -> Chart | None:
    """Quantiles of the reward over replies."""
    quantiles = np.array([_finite_quantiles(batch.reward_N) for batch in monitor.batches]).T
    if not np.isfinite(quantiles).any():
        return None
    p5, p25, median, p75, p95 = quantiles
    no_line = np.full(len(median), np.nan)
    lines = [
        Line("median, middle half", median, 0, p25, p75),
        Line("5 to 95 %", no_line, 5, p5, p95),
    ]
    return _draw_panel(monitor, "Distribution of the reward", "reward", lines)


def gold_and_proxy(monitor: Replay) -> Chart | None:
    """True and learned reward; None where the truth is not known."""
    gold = _per_iteration(monitor, lambda batch: _finite_mean(batch.gold_N))
    if not np.isfinite(gold).any():
        return None
    proxy = _per_iteration(monitor, lambda batch: _finite_mean(batch.reward_N))
    lines = [Line("gold", gold, 1), Line("proxy", proxy, 0)]
    return _draw_panel(monitor, "Gold and proxy reward of the samples", "reward", lines)


def _draw_panel(monitor: Replay, title: str, y_label: str, lines: Sequence[Line]) -> Chart:
    """Curves over iterations with the alarms as vertical lines."""
    series = [Series(line.name, _points(line), line.colour) for line in lines]
    return curves(
        series,
        title=title,
        x_label="iteration",
        y_label=y_label,
        size=(420, 170),
        legend=True,
        events=_alarms(monitor),
    )


def _points(line: Line) -> list[Point]:
    """At most POINTS points of a line; of a line that is only a band, the values are NaN."""
    no_band = np.full(len(line.values), np.nan)
    low_N = no_band if line.low is None else line.low
    high_N = no_band if line.high is None else line.high
    points = []
    for iteration, value, low, high in zip(*_bin_means(line.values, low_N, high_N), strict=True):
        facts = {"iteration": compact(iteration), "mean": compact(value)}
        if math.isfinite(low) and math.isfinite(high):
            facts["band"] = f"{compact(low)} to {compact(high)}"
        points.append(Point(iteration, value, low, high, facts=facts))
    return points


def _alarms(monitor: Replay) -> list[Event]:
    """The first warning, the first strong warning, and the fall of gold."""
    iterations: dict[str, float | None] = {name: monitor.detector.first.get(name) for name in LEVELS[1:]}
    iterations["gold_fall"] = monitor.detector.totals().get("gold_fall")
    return [
        Event(iteration + 1, WORDS[name])
        for name, iteration in iterations.items()
        if iteration is not None and math.isfinite(iteration)
    ]


def _bin_means(*series: FloatArray) -> list[list[float]]:
    """Iterations, counted from 1, and each series as at most POINTS means of stretches of iterations."""
    size = len(series[0])
    bins = np.array_split(np.arange(size), min(POINTS, size))
    iterations = [float(indices.mean()) + 1 for indices in bins]
    return [iterations, *([_finite_mean(values_N[indices]) for indices in bins] for values_N in series)]


def _format_run_number(name: str, value: float) -> str:
    """A run-level number; iterations are recorded from 0 and shown from 1."""
    return f"{value + 1:.0f}" if name == "stopped_at" else compact(value)


def _per_iteration(monitor: Replay, value: Callable[[Batch], float]) -> FloatArray:
    return np.array([value(batch) for batch in monitor.batches])


def _finite_mean(values_N: FloatArray) -> float:
    finite_N = values_N[np.isfinite(values_N)]
    return float(finite_N.mean()) if len(finite_N) else math.nan


def _finite_quantiles(values_N: FloatArray) -> FloatArray:
    finite_N = values_N[np.isfinite(values_N)]
    if not len(finite_N):
        return np.full(len(QUANTILES), np.nan)
    return np.quantile(finite_N, QUANTILES)
