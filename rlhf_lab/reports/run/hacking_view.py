"""What the reward-hacking monitor saw, for the report of a run: three panels over training and a line per rule.

Length with the band in which `length_z` is silent, the reward's distribution, and true against learned reward; each
with the first alarms of both levels. Everything is judged again from monitor.jsonl.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_lab.core.metrics import names
from rlhf_lab.core.types import FloatArray
from rlhf_lab.figures.svg import GREY, Canvas, dash, span
from rlhf_lab.monitoring.detector import LEVELS, Batch
from rlhf_lab.monitoring.metrics import DETECTOR, MONITOR_OF_A_RUN
from rlhf_lab.monitoring.monitor import TRACE
from rlhf_lab.monitoring.replay import Replay, replay, rule_rows, summary
from rlhf_lab.results.rundir import Run
from rlhf_lab.results.wording import compact

POINTS = 40
"""Of a curve: the page stays small however long the run."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
WORDS = {"warning": "warning", "hard_stop": "strong warning", "gold_fall": "gold fell"}
"""Vertical lines → what is written on them."""
OWN = {name.partition("/")[0] for name in names((*DETECTOR, *MONITOR_OF_A_RUN))}


@dataclass(frozen=True)
class Line:
    """A curve over iterations; with `low` and `high` a band around it. `colour` is an index into the palette."""

    name: str
    values: FloatArray
    colour: int
    low: FloatArray | None = None
    high: FloatArray | None = None


def told(metric: str) -> bool:
    """Whether a metric of the run stands in this section."""
    return metric.partition("/")[0] in OWN


def hacking_view(run: Run) -> dict[str, Any] | None:
    """Panels, table and remarks of the monitor's section; None for a run that was not watched."""
    if not (run.path / TRACE).is_file():
        return None
    found = replay(run.path)
    columns, rows = rule_rows(found)
    panels = [lengths(found), rewards(found), gold_and_proxy(found)]
    return {
        "panels": [panel for panel in panels if panel],
        "columns": columns,
        "rows": rows,
        "words": summary(found).split("\n"),
        "remarks": [
            f"{metric.meaning}: {_run_number(metric.name, run.results[metric.name].mean)}"
            for metric in MONITOR_OF_A_RUN
            if metric.name in run.results
        ],
    }


def lengths(found: Replay) -> str | None:
    """Mean reply length, and the band in which `length_z` is silent."""
    band = found.detector.band()
    size = len(found.batches)
    lines = [Line("mean reply length", _per_iteration(found, lambda b: _mean(b.tokens_N)), 0)]
    if band:
        middle = np.full(size, sum(band) / 2)
        lines.append(Line("warm-up", middle, GREY, np.full(size, band[0]), np.full(size, band[1])))
    return _panel(found, "Reply length", "tokens", lines)


def rewards(found: Replay) -> str | None:
    """Quantiles of the reward over replies."""
    quantiles = np.array([_quantiles(b.reward_N) for b in found.batches]).T
    if not np.isfinite(quantiles).any():
        return None
    low, start, middle, end, high = quantiles
    lines = [
        Line("median, middle half", middle, 0, start, end),
        Line("5 to 95 %", np.full(len(middle), np.nan), 5, low, high),
    ]
    return _panel(found, "Distribution of the reward", "reward", lines)


def gold_and_proxy(found: Replay) -> str | None:
    """True and learned reward; None where the truth is not known."""
    gold = _per_iteration(found, lambda b: _mean(b.gold_N))
    if not np.isfinite(gold).any():
        return None
    lines = [Line("gold", gold, 1), Line("proxy", _per_iteration(found, lambda b: _mean(b.reward_N)), 0)]
    return _panel(found, "Gold and proxy reward of the samples", "reward", lines)


def _panel(found: Replay, title: str, y_label: str, lines: Sequence[Line]) -> str:
    """Curves over iterations with the alarms as vertical lines."""
    bounds = [bound for line in lines for bound in (line.low, line.high) if bound is not None]
    shown = np.concatenate([*(line.values for line in lines), *bounds])
    ends = [(line.name, line.values[np.isfinite(line.values)]) for line in lines]
    words = "; ".join(f"{name} from {v[0]:.2f} to {v[-1]:.2f}" for name, v in ends if len(v))
    x_range = (1.0, max(2.0, float(len(found.batches))))
    canvas = Canvas(430, 240, x_range, span(shown.tolist()), title, words, left=54, top=38)
    canvas.y_axis(y_label)
    canvas.x_axis("iteration", integers=True)
    for line in lines:
        if line.low is not None and line.high is not None:
            canvas.band(list(zip(*_thinned(line.low, line.high), strict=True)), line.colour)
    for line in lines:
        points = list(zip(*_thinned(line.values), strict=True))
        canvas.line(points, line.colour, dash=dash(line.colour))
    _alarms(canvas, found)
    canvas.legend([(line.name, line.colour) for line in lines], marks=False)
    return canvas.render()


def _alarms(canvas: Canvas, found: Replay) -> None:
    """A dashed vertical line with its name for the first warning, the first strong warning, and the fall of gold."""
    places: dict[str, float | None] = {name: found.detector.first.get(name) for name in LEVELS[1:]}
    places["gold_fall"] = found.detector.totals().get("gold_fall")
    height = canvas.height - canvas.bottom
    for row, (name, at) in enumerate(places.items()):
        if at is not None and math.isfinite(at):
            here, base = canvas.x(at + 1), canvas.top + 10 + 12 * row
            canvas.parts.append(f'<path class="axis" stroke-dasharray="4 3" d="M{here:.1f} {canvas.top}V{height}"/>')
            left = here > canvas.width / 2
            canvas.text(here + (-4 if left else 4), base, WORDS[name], anchor="end" if left else "start", kind="halo")


def _thinned(*values: FloatArray) -> list[list[float]]:
    """Iterations, counted from 1, and values as at most POINTS means of stretches of iterations."""
    parts = np.array_split(np.arange(len(values[0])), min(POINTS, len(values[0])))
    return [[float(part.mean()) + 1 for part in parts], *([_mean(v[part]) for part in parts] for v in values)]


def _run_number(name: str, value: float) -> str:
    """A run-level number; iterations are recorded from 0 and shown from 1."""
    return f"{value + 1:.0f}" if name == "stopped_at" else compact(value)


def _per_iteration(found: Replay, value: Callable[[Batch], float]) -> FloatArray:
    return np.array([value(batch) for batch in found.batches])


def _mean(values_N: FloatArray) -> float:
    known_N = values_N[np.isfinite(values_N)]
    return float(known_N.mean()) if len(known_N) else math.nan


def _quantiles(values_N: FloatArray) -> FloatArray:
    known_N = values_N[np.isfinite(values_N)]
    return np.quantile(known_N, QUANTILES) if len(known_N) else np.full(len(QUANTILES), np.nan)
