"""Curves of what a run logged while it trained: one run's by stage, or two runs' over one another."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from rlhf_lab.figures.charts import Point, Series, curves
from rlhf_lab.results.wording import compact

BINS = 60
CHARTS = 12
FIRST = ("loss", "gold", "proxy", "reward", "margin", "accuracy", "kl", "tokens", "grad", "lr")
UNPLOTTED = ("step", "time", "stage")


def overlaid_curves(runs: Mapping[str, pd.DataFrame]) -> list[tuple[str, str]]:
    """(chart name, SVG) of the metrics that all runs logged and that are not one constant, most looked at first.

    Args:
        runs: name of a run → its logged rows; every run is a line of each chart.
    """
    logged = [_logged(rows) for rows in runs.values()]
    shared = [name for name in logged[0] if all(name in names for names in logged[1:])]
    moving = [name for name in shared if pd.concat([rows[name] for rows in runs.values()]).nunique() > 1]
    charts = []
    for name in sorted(moving, key=_interest)[:CHARTS]:
        series = [Series(run, _points(rows, name), colour) for colour, (run, rows) in enumerate(runs.items())]
        charts.append((name, curves([one for one in series if one.points], title=name)))
    return charts


def training_curves(rows: pd.DataFrame) -> tuple[list[tuple[str, str]], list[tuple[str, str, str]]]:
    """(chart name, SVG) for the first metrics, and (name, first, last) for the others."""
    if rows.empty or "step" not in rows:
        return [], []
    names = _logged(rows)
    moving = [name for name in names if rows[name].nunique() > 1]
    moving.sort(key=_interest)
    charts = [(name, _chart(rows, name)) for name in moving[:CHARTS]]
    rest = []
    for name in [*moving[CHARTS:], *(name for name in names if name not in moving)]:
        known = pd.to_numeric(rows[name], errors="coerce").dropna()
        if len(known):
            rest.append((str(name), compact(float(known.iloc[0])), compact(float(known.iloc[-1]))))
    return charts, rest


def _chart(rows: pd.DataFrame, name: str) -> str:
    stages = rows["stage"].fillna("").astype(str) if "stage" in rows else pd.Series("", index=rows.index)
    series = []
    for colour, stage in enumerate(dict.fromkeys(stages)):
        if points := _points(rows[stages == stage], name):
            series.append(Series(stage or "run", points, colour))
    return curves(series, title=str(name))


def _logged(rows: pd.DataFrame) -> list[str]:
    """Numeric columns; the monitor's have a section of their own."""
    names = [str(name) for name in rows if name not in UNPLOTTED and _is_number(rows[name])]
    return [name for name in names if not name.startswith("monitor/")] if "step" in rows else []


def _points(rows: pd.DataFrame, name: str) -> list[Point]:
    return _binned(rows["step"].to_numpy(dtype=float), pd.to_numeric(rows[name], errors="coerce").to_numpy())


def _binned(steps: np.ndarray, values: np.ndarray) -> list[Point]:
    """At most BINS points: mean of each stretch of steps, with its smallest and largest value as band."""
    known = np.isfinite(values) & np.isfinite(steps)
    steps, values = steps[known], values[known]
    points = []
    for place in np.array_split(np.argsort(steps, kind="stable"), min(BINS, len(steps)) or 1):
        if len(place):
            part = values[place]
            low, high = (part.min(), part.max()) if len(values) > BINS else (math.nan, math.nan)
            points.append(Point(float(steps[place].mean()), float(part.mean()), float(low), float(high)))
    return points


def _interest(name: str) -> tuple[int, bool, str]:
    """Charts people look at first: loss, rewards, margins, KL, length; then the rest by name."""
    rank = next((rank for rank, word in enumerate(FIRST) if word in name), len(FIRST))
    return rank, name not in FIRST, name


def _is_number(column: pd.Series) -> bool:
    return bool(pd.to_numeric(column, errors="coerce").notna().any())
