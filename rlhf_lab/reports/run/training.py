"""Curves of logged metrics during training: of one run by stage, or of two runs in the same charts."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from rlhf_lab.figures.charts import Point, Series, curves
from rlhf_lab.figures.layers import Chart
from rlhf_lab.reports.sections import PageSection
from rlhf_lab.results.rundir import StoredRun
from rlhf_lab.results.wording import compact, metric_title

BINS = 60
"""Maximum number of points of a curve, which limits the size of the page."""
CHARTS = 24
"""Maximum number of charts; PPO logs about as many metrics that vary."""
FIRST = ("loss", "gold", "proxy", "reward", "margin", "accuracy", "kl", "tokens", "grad", "lr")
"""Words in metric names, in the usual reading order of the charts."""
UNPLOTTED = ("step", "time", "stage")
"""Columns that are not metrics."""


def overlaid_curves(runs: Mapping[str, pd.DataFrame]) -> list[tuple[str, Chart]]:
    """Return (title, chart) of the metrics that all runs logged and that vary, in reading order.

    Args:
        runs: name of a run → its logged rows; every run is a line of each chart.
    """
    first, *others = [_numeric_columns(rows) for rows in runs.values()]
    shared = [name for name in first if all(name in names for names in others)]
    varying = [name for name in shared if pd.concat([rows[name] for rows in runs.values()]).nunique() > 1]
    charts = []
    for name in sorted(varying, key=_reading_order)[:CHARTS]:
        charts.append((metric_title(name), _chart(name, runs)))
    return charts


def training(run: StoredRun) -> PageSection:
    """Return the section with curves of the logged metrics; the remaining metrics are in a collapsed table."""
    charts, uncharted = training_curves(run.metrics)
    values = {"charts": charts, "uncharted": uncharted}
    return PageSection("Training", template=f"{__package__}:training.html.j2", values=values)


def training_curves(rows: pd.DataFrame) -> tuple[list[tuple[str, Chart]], list[tuple[str, str, str]]]:
    """Return (title, chart) for the first metrics, and (key, first, last) for the others."""
    if rows.empty or "step" not in rows:
        return [], []
    names = _numeric_columns(rows)
    varying = [name for name in names if rows[name].nunique() > 1]
    varying.sort(key=_reading_order)
    constant = [name for name in names if name not in varying]
    charts = [(metric_title(name), _stage_chart(rows, name)) for name in varying[:CHARTS]]
    uncharted = []
    for name in [*varying[CHARTS:], *constant]:
        values = pd.to_numeric(rows[name], errors="coerce").dropna()
        if len(values):
            first, last = float(values.iloc[0]), float(values.iloc[-1])
            uncharted.append((str(name), compact(first), compact(last)))
    return charts, uncharted


def _stage_chart(rows: pd.DataFrame, name: str) -> Chart:
    stages = rows["stage"].fillna("").astype(str) if "stage" in rows else pd.Series("", index=rows.index)
    return _chart(name, {stage or "run": rows[stages == stage] for stage in dict.fromkeys(stages)})


def _chart(name: str, lines: Mapping[str, pd.DataFrame]) -> Chart:
    """Plot one metric over steps, with a line per entry: its name → logged rows."""
    series = []
    for colour, (line, rows) in enumerate(lines.items()):
        values_N = pd.to_numeric(rows[name], errors="coerce").to_numpy()
        if points := _bin_points(rows["step"].to_numpy(dtype=float), values_N):
            series.append(Series(line, points, colour))
    return curves(series, title=name)


def _numeric_columns(rows: pd.DataFrame) -> list[str]:
    """Return columns that can be plotted over steps; metrics of monitor and audit have their own sections."""
    if "step" not in rows:
        return []
    names = [str(name) for name in rows if name not in UNPLOTTED and not str(name).startswith(("monitor/", "audit/"))]
    return [name for name in names if pd.to_numeric(rows[name], errors="coerce").notna().any()]


def _bin_points(steps_N: np.ndarray, values_N: np.ndarray) -> list[Point]:
    """Return up to BINS points: the mean of each bin of steps, with its minimum and maximum as a band."""
    finite_N = np.isfinite(values_N) & np.isfinite(steps_N)
    steps_N, values_N = steps_N[finite_N], values_N[finite_N]
    points = []
    # Splitting the sorted order gives bins of equal count, even if steps are logged irregularly.
    for indices in np.array_split(np.argsort(steps_N, kind="stable"), min(BINS, len(steps_N)) or 1):
        if not len(indices):
            continue
        bin_values = values_N[indices]
        low, high = math.nan, math.nan
        first, last = f"{steps_N[indices].min():.0f}", f"{steps_N[indices].max():.0f}"
        tooltip = {"step": first, "value": compact(float(bin_values.mean()))}
        if len(values_N) > BINS:
            low, high = float(bin_values.min()), float(bin_values.max())
            tooltip = {
                "steps": f"{first} to {last}",
                "mean": compact(float(bin_values.mean())),
                "minimum to maximum": f"{compact(low)} to {compact(high)}",
                "n": str(len(bin_values)),
            }
        points.append(Point(float(steps_N[indices].mean()), float(bin_values.mean()), low, high, tooltip=tooltip))
    return points


def _reading_order(name: str) -> tuple[int, bool, str]:
    """Return the sort key of a chart: loss, rewards, margins, KL, length first; then all others by name."""
    rank = next((rank for rank, word in enumerate(FIRST) if word in name), len(FIRST))
    is_variant = name not in FIRST  # "loss" before "loss/critic"
    return rank, is_variant, name
