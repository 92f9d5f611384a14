"""Curves of what a run logged while it trained: one run's by stage, or two runs' over one another."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from rlhf_lab.figures.charts import Point, Series, curves
from rlhf_lab.figures.layers import Chart
from rlhf_lab.reports.sections import PageSection
from rlhf_lab.results.rundir import Run
from rlhf_lab.results.wording import compact

BINS = 60
"""Points of a curve: the page stays small however long the run."""
CHARTS = 12
FIRST = ("loss", "gold", "proxy", "reward", "margin", "accuracy", "kl", "tokens", "grad", "lr")
UNPLOTTED = ("step", "time", "stage")


def overlaid_curves(runs: Mapping[str, pd.DataFrame]) -> list[tuple[str, Chart]]:
    """(name, chart) of the metrics that all runs logged and that are not one constant, most looked at first.

    Args:
        runs: name of a run → its logged rows; every run is a line of each chart.
    """
    first, *others = [_numeric_columns(rows) for rows in runs.values()]
    shared = [name for name in first if all(name in names for names in others)]
    varying = [name for name in shared if pd.concat([rows[name] for rows in runs.values()]).nunique() > 1]
    charts = []
    for name in sorted(varying, key=_reading_order)[:CHARTS]:
        series = []
        for colour, (run, rows) in enumerate(runs.items()):
            if points := _curve_points(rows, name):
                series.append(Series(run, points, colour))
        charts.append((name, curves(series, title=name)))
    return charts


def training(run: Run) -> PageSection:
    """Curves of the metrics that were logged, and the others in a table that is folded."""
    charts, uncharted = training_curves(run.metrics)
    values = {"charts": charts, "uncharted": uncharted}
    return PageSection("Training", template=f"{__package__}:training.html.j2", values=values)


def training_curves(rows: pd.DataFrame) -> tuple[list[tuple[str, Chart]], list[tuple[str, str, str]]]:
    """(name, chart) for the first metrics, and (name, first, last) for the others."""
    if rows.empty or "step" not in rows:
        return [], []
    names = _numeric_columns(rows)
    varying = [name for name in names if rows[name].nunique() > 1]
    varying.sort(key=_reading_order)
    constant = [name for name in names if name not in varying]
    charts = [(name, _stage_chart(rows, name)) for name in varying[:CHARTS]]
    uncharted = []
    for name in [*varying[CHARTS:], *constant]:
        values = pd.to_numeric(rows[name], errors="coerce").dropna()
        if len(values):
            uncharted.append((str(name), compact(float(values.iloc[0])), compact(float(values.iloc[-1]))))
    return charts, uncharted


def _stage_chart(rows: pd.DataFrame, name: str) -> Chart:
    """One metric, a line per stage."""
    stages = rows["stage"].fillna("").astype(str) if "stage" in rows else pd.Series("", index=rows.index)
    series = []
    for colour, stage in enumerate(dict.fromkeys(stages)):
        if points := _curve_points(rows[stages == stage], name):
            series.append(Series(stage or "run", points, colour))
    return curves(series, title=str(name))


def _numeric_columns(rows: pd.DataFrame) -> list[str]:
    """Columns that can be drawn over steps; the monitor's have a section of their own."""
    if "step" not in rows:
        return []
    names = [str(name) for name in rows if name not in UNPLOTTED and _is_number(rows[name])]
    return [name for name in names if not name.startswith("monitor/")]


def _curve_points(rows: pd.DataFrame, name: str) -> list[Point]:
    steps_N = rows["step"].to_numpy(dtype=float)
    values_N = pd.to_numeric(rows[name], errors="coerce").to_numpy()
    return _bin_points(steps_N, values_N)


def _bin_points(steps_N: np.ndarray, values_N: np.ndarray) -> list[Point]:
    """At most BINS points: mean of each stretch of steps, with its smallest and largest value as band."""
    finite_N = np.isfinite(values_N) & np.isfinite(steps_N)
    steps_N, values_N = steps_N[finite_N], values_N[finite_N]
    points = []
    for indices in np.array_split(np.argsort(steps_N, kind="stable"), min(BINS, len(steps_N)) or 1):
        if not len(indices):
            continue
        bin_values = values_N[indices]
        low, high = math.nan, math.nan
        steps = f"{steps_N[indices].min():.0f}"
        facts = {"step": steps, "value": compact(float(bin_values.mean()))}
        if len(values_N) > BINS:
            low, high = float(bin_values.min()), float(bin_values.max())
            facts = {
                "steps": f"{steps} to {steps_N[indices].max():.0f}",
                "mean": compact(float(bin_values.mean())),
                "smallest to largest": f"{compact(low)} to {compact(high)}",
                "n": str(len(bin_values)),
            }
        x, y = float(steps_N[indices].mean()), float(bin_values.mean())
        points.append(Point(x, y, low, high, facts=facts))
    return points


def _reading_order(name: str) -> tuple[int, bool, str]:
    """Charts people look at first: loss, rewards, margins, KL, length; then all others by name."""
    rank = next((rank for rank, word in enumerate(FIRST) if word in name), len(FIRST))
    is_variant = name not in FIRST  # "loss" before "loss/critic"
    return rank, is_variant, name


def _is_number(column: pd.Series) -> bool:
    return bool(pd.to_numeric(column, errors="coerce").notna().any())
