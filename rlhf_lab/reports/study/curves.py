"""Section on over-optimisation: its figure and table; see `studies/curves.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhf_lab.figures.charts import gain_curves
from rlhf_lab.figures.layers import Chart
from rlhf_lab.reports.sections import PageSection, ReportTable
from rlhf_lab.reports.study.results import StudyResults
from rlhf_lab.results.wording import compact
from rlhf_lab.studies.curves import HEADINGS, NAME, NOTE, LevelCurve, fit_rows, level_curves

FIT_POINTS = 60
"""Number of points of a fitted curve in the figure."""


def curves(results: StudyResults) -> PageSection | None:
    """Return the section with curves and a table of their fits.

    None if the study requests no curves, or no level has any.
    """
    study = results.study
    fitted = level_curves(study) if study.curves == NAME else []
    if not fitted:
        return None
    figure = curve_figure(fitted)
    table = ReportTable(HEADINGS, fit_rows(fitted))
    return PageSection("Over-optimisation", NOTE, [figure], table, files={NAME: figure})


def curve_figure(curves: Sequence[LevelCurve]) -> Chart:
    """Plot gains in gold (solid) and proxy (dashed) against √KL: policies as faint points, and mean fitted curves."""
    return gain_curves(
        [row for curve in curves for row in _policy_rows(curve)],
        [row for curve in curves for row in _fit_rows(curve)],
        [curve.level for curve in curves],
        title="Proxy and gold reward gained against distance from the reference policy",
        description="; ".join(map(_last_point_in_words, curves)),
        x_label="√KL from the reference policy, √nats per response",
        y_label="gain, gold and proxy each in its own unit",
    )


def _policy_rows(curve: LevelCurve) -> list[dict[str, Any]]:
    rows = []
    for point in curve.points.to_dict("records"):
        for metric in ("proxy", "gold"):
            gain = float(point[metric])
            # Gains are NaN if a metric is unknown at the start of the run.
            if math.isfinite(gain):
                tooltip = {
                    "level": curve.level,
                    "gain": f"{compact(gain)} ({metric})",
                    "√KL": compact(float(point["d"])),
                    "seed": str(point["seed"]),
                    "policy": f"number {point['position']} of its run",
                }
                rows.append(
                    {"series": curve.level, "metric": metric, "x": float(point["d"]), "y": gain, "facts": tooltip}
                )
    return rows


def _fit_rows(curve: LevelCurve) -> list[dict[str, Any]]:
    """Return the mean of the seeds' fitted curves, as points from 0 to the farthest policy."""
    d_N = np.linspace(0.0, float(curve.points["d"].max()), FIT_POINTS)
    rows = []
    for metric, fits in (("proxy", curve.proxy), ("gold", curve.gold)):
        if fits is not None:
            gains = fits.gain(d_N).tolist()
            for d, gain in zip(d_N.tolist(), gains, strict=True):
                rows.append({"series": curve.level, "metric": metric, "x": d, "y": gain})
    return rows


def _last_point_in_words(curve: LevelCurve) -> str:
    # The farthest policy describes the curve for screen readers.
    last = curve.points.sort_values("d").iloc[-1]
    distance, gold, proxy = (compact(last[name]) for name in ("d", "gold", "proxy"))
    return f"{curve.level}: at √KL {distance} gold {gold}, proxy {proxy}"
