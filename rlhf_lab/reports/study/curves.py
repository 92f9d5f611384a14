"""The section on over-optimisation: its figure and table; see `studies/curves.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhf_lab.figures.charts import gain_curves
from rlhf_lab.figures.layers import Chart
from rlhf_lab.reports.sections import PageSection, Table
from rlhf_lab.reports.study.results import StudyResults
from rlhf_lab.results.wording import compact
from rlhf_lab.studies.curves import HEADINGS, NAME, NOTE, LevelCurve, fit_rows, level_curves

FIT_POINTS = 60
"""Of a fitted curve as it is drawn."""


def curves(results: StudyResults) -> PageSection | None:
    """Curves with a table of their fits; None when the study asks for no curves or has none yet."""
    study = results.study
    fitted = level_curves(study) if study.curves == NAME else []
    if not fitted:
        return None
    figure = curve_figure(fitted)
    table = Table(HEADINGS, fit_rows(fitted))
    return PageSection("Over-optimisation", NOTE, [figure], table, files={NAME: figure})


def curve_figure(curves: Sequence[LevelCurve]) -> Chart:
    """Gold (solid) and proxy (dashed) gains against √KL: single policies faint, the mean of the seeds' curves drawn."""
    points: list[dict[str, Any]] = []
    fits: list[dict[str, Any]] = []
    for curve in curves:
        points += _policy_rows(curve)
        fits += _fit_rows(curve)
    return gain_curves(
        points,
        fits,
        [curve.level for curve in curves],
        title="Proxy and gold reward gained against distance from the reference policy",
        description="; ".join(map(_last_point_in_words, curves)),
        x_label="√KL from the reference policy, √nats per response",
        y_label="gain: gold in its unit, proxy in sd of the first policy",
    )


def _policy_rows(curve: LevelCurve) -> list[dict[str, Any]]:
    """A row per policy and metric that has a value."""
    rows = []
    for point in curve.points.to_dict("records"):
        for metric in ("proxy", "gold"):
            gain = float(point[metric])
            if math.isfinite(gain):
                facts = {
                    "level": curve.level,
                    "gain": f"{compact(gain)} ({metric})",
                    "√KL": compact(float(point["d"])),
                    "seed": str(point["seed"]),
                    "policy": f"number {point['position']} of its run",
                }
                rows.append(
                    {"series": curve.level, "metric": metric, "x": float(point["d"]), "y": gain, "facts": facts}
                )
    return rows


def _fit_rows(curve: LevelCurve) -> list[dict[str, Any]]:
    """The mean of the seeds' fitted curves, as points from 0 to the farthest policy."""
    d_N = np.linspace(0.0, float(curve.points["d"].max()), FIT_POINTS)
    rows = []
    for metric, fits in (("proxy", curve.proxy), ("gold", curve.gold)):
        if fits is not None:
            gains = fits.gain(d_N).tolist()
            rows += [
                {"series": curve.level, "metric": metric, "x": d, "y": gain}
                for d, gain in zip(d_N.tolist(), gains, strict=True)
            ]
    return rows


def _last_point_in_words(curve: LevelCurve) -> str:
    last = curve.points.sort_values("d").iloc[-1]
    return f"{curve.level}: at √KL {compact(last['d'])} gold {compact(last['gold'])}, proxy {compact(last['proxy'])}"
