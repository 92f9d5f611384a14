"""Local page with the panels of the W&B dashboard: dashboard.html of a run or a study. The list is trackers/panels.py.

A curve of a run shows the run and the stages that it starts from, built or reused. A curve of a study shows the mean of
each level over its jobs, and of each stage that the jobs start from, because a page cannot select runs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from rlhf_lab.core.files import read_object
from rlhf_lab.core.types import FloatArray
from rlhf_lab.figures.charts import Level, Point, Series, curves, dot_chart, frontier
from rlhf_lab.figures.layers import Chart
from rlhf_lab.reports.page import write_page
from rlhf_lab.reports.run.training import BINS, bin_points
from rlhf_lab.reports.sections import PageSection, ReportPage
from rlhf_lab.results.folders import find_run
from rlhf_lab.results.outcome import outcome
from rlhf_lab.results.rundir import input_directory, read_run
from rlhf_lab.results.wording import compact, metric_title
from rlhf_lab.statistics.inference import seed_mean
from rlhf_lab.studies.frame import is_study, read_study
from rlhf_lab.trackers.panels import SECTIONS, Bars, Curve, Nodes, Panel, Points

PAGE = "dashboard.html"
SIZE = (480, 200)
"""Size of a curve, px; a legend of three stages fits into its width."""
FOOTER = "The panels are those of the W&B dashboard. Policies and samples are in report.html."


@dataclass(frozen=True)
class PanelRun:
    """Run whose numbers the panels show.

    Attributes:
        group: level of a job of a study, else the recipe of the stage.
        final: final metrics, as a tracker gets them.
    """

    group: str
    is_level: bool
    rows: pd.DataFrame
    final: Mapping[str, float]


def write_dashboard(directory: Path) -> Path:
    """Write the panels of a run or study directory, complete or not. Return the path of the page.

    Raises:
        DataError: the directory is neither a run nor a study.
    """
    if is_study(directory):
        study = read_study(directory)
        jobs = [(study.label(row["level"]), row["run"]) for row in study.completed.to_dict("records")]
        title = study.question or study.recipe
    else:
        directory = find_run(directory)
        jobs = [("", directory)]
        title = read_run(directory).recipe
    runs = list(_runs(jobs))
    sections = {"header": PageSection(f"Dashboard: {title}")}
    for number, (name, panels) in enumerate(SECTIONS.items(), start=1):
        boxes = [box for panel in panels if (box := _box(panel, runs)) is not None]
        if boxes:
            sections[f"heading_{number}"] = PageSection(name)
            sections[f"panels_{number}"] = PageSection(template="two.html.j2", values={"rows": [boxes]})
    return write_page(directory / PAGE, ReportPage(f"Dashboard: {title}", sections, FOOTER))


def _runs(jobs: Sequence[tuple[str, Path]]) -> Iterator[PanelRun]:
    """Yield the upstream stages of all jobs, each once, and the jobs' own runs."""
    seen: set[Path] = set()
    for level, path in jobs:
        for upstream in _upstream(path, seen):
            yield _panel_run(upstream, "")
        yield _panel_run(path, level)


def _upstream(path: Path, seen: set[Path]) -> Iterator[Path]:
    """Yield the directories of all stages before a run, each one after the stages that it starts from."""
    for need in (read_object(path / "manifest.json").get("needs") or {}).values():
        # A model of the hub has no run directory, and a stage may have been deleted.
        stage = input_directory(path, need)
        if stage is None or stage.resolve() in seen:
            continue
        seen.add(stage.resolve())
        yield from _upstream(stage, seen)
        yield stage


def _panel_run(path: Path, level: str) -> PanelRun:
    run = read_run(path)
    return PanelRun(level or run.recipe, bool(level), run.metrics, outcome(path).final)


def _box(panel: Panel, runs: Sequence[PanelRun]) -> PageSection | None:
    if isinstance(panel, Bars):
        chart = _bars(panel, runs)
    else:
        chart = _points(panel, runs) if isinstance(panel, Points) else _curves(panel, runs)
    return PageSection(figures=[chart], title=panel.title) if chart else None


def _groups(runs: Sequence[PanelRun]) -> dict[str, list[PanelRun]]:
    groups: dict[str, list[PanelRun]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    return groups


def _curves(panel: Curve | Nodes, runs: Sequence[PanelRun]) -> Chart | None:
    """Plot a line per group and metric; None without any."""
    x = panel.x if isinstance(panel, Curve) else "step"
    grouped = isinstance(panel, Curve) and panel.grouped
    series: list[Series] = []
    for group, members in _groups([run for run in runs if run.is_level or not grouped]).items():
        metrics = _metrics_of(panel, members)
        for metric in metrics:
            points = _mean_curve([_values(run.rows, x, metric) for run in members], x)
            name = group if len(metrics) == 1 and isinstance(panel, Curve) else f"{group}: {metric}"
            if points:
                series.append(Series(name, points, len(series)))
    if not series:
        return None
    return curves(series, title=panel.title, x_label=x, y_label=panel.unit, size=SIZE, legend=True)


def _metrics_of(panel: Curve | Nodes, runs: Sequence[PanelRun]) -> list[str]:
    logged = list(dict.fromkeys(str(name) for run in runs for name in run.rows.columns))
    if isinstance(panel, Nodes):
        return sorted(name for name in logged if re.search(panel.pattern, name))
    return [name for name in panel.metrics if name in logged]


def _values(rows: pd.DataFrame, x: str, metric: str) -> tuple[FloatArray, FloatArray]:
    """Return the finite values of x and of a metric, (N,) each; empty if the run has not logged both."""
    if x not in rows or metric not in rows:
        return np.zeros(0), np.zeros(0)
    x_N = pd.to_numeric(rows[x], errors="coerce").to_numpy(dtype=float)
    y_N = pd.to_numeric(rows[metric], errors="coerce").to_numpy(dtype=float)
    finite_N = np.isfinite(x_N) & np.isfinite(y_N)
    return x_N[finite_N], y_N[finite_N]


def _mean_curve(logged: Sequence[tuple[FloatArray, FloatArray]], x: str = "step") -> list[Point]:
    """Return the mean of the runs' curves over `x`, with its standard error as a band.

    A single run has its own curve and no band.
    """
    logged = [(x_N, y_N) for x_N, y_N in logged if len(x_N)]
    if len(logged) < 2:
        return bin_points(*logged[0], x) if logged else []
    rows = pd.concat([pd.DataFrame({"run": run, "x": x_N, "y": y_N}) for run, (x_N, y_N) in enumerate(logged)])
    # All runs share the bins, so that each of them counts once in the mean of a bin.
    edges = np.linspace(rows["x"].min(), rows["x"].max(), min(BINS, rows["x"].nunique()) + 1)
    rows["bin"] = np.clip(np.searchsorted(edges, rows["x"], side="right") - 1, 0, len(edges) - 2)
    points = []
    for _, of_bin in rows.groupby("bin"):
        by_run = of_bin.groupby("run")["y"].mean()
        mean, error = (
            float(by_run.mean()),
            float(by_run.std()) / math.sqrt(len(by_run)),
        )  # the error of a single run is NaN
        tooltip = {"mean": compact(mean), "standard error": compact(error), "runs": str(len(by_run))}
        # The middle of a bin may lie between two steps.
        points.append(Point(float(of_bin["x"].mean()), mean, mean - error, mean + error, tooltip=tooltip))
    return points


def _bars(panel: Bars, runs: Sequence[PanelRun]) -> Chart | None:
    """Plot the final metric of each level, its mean over the jobs with a 95 % interval; None without levels."""
    levels: list[Level] = []
    for group, members in _groups([run for run in runs if run.is_level]).items():
        values = [run.final[panel.metric] for run in members if panel.metric in run.final]
        if values:
            levels.append(Level(group, seed_mean(values), values, colour=len(levels), units="jobs"))
    return dot_chart(levels, title=panel.title, x_label=panel.unit) if levels else None


def _points(panel: Points, runs: Sequence[PanelRun]) -> Chart | None:
    """Plot two final metrics, one point per run; None without a run that has both."""
    series: list[Series] = []
    for group, members in _groups(runs).items():
        finals = [run.final for run in members if {panel.x, panel.y} <= run.final.keys()]
        if points := [Point(final[panel.x], final[panel.y], joined=False) for final in finals]:
            series.append(Series(group, points, len(series)))
    if not series:
        return None
    return frontier(series, title=panel.title, x_label=metric_title(panel.x), y_label=metric_title(panel.y))
