"""Policies of a study along training: rewards, distance from the reference and length, side by side by level."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

import pandas as pd

from rlhf_lab.figures.charts import Point, Series, estimate_tooltip, frontier
from rlhf_lab.figures.layers import Chart
from rlhf_lab.reports.run.frontier import gold_note
from rlhf_lab.reports.sections import PageSection, figure_boxes
from rlhf_lab.reports.study.policy_view import last_of_runs
from rlhf_lab.reports.study.results import StudyResults
from rlhf_lab.results.wording import compact, judged_title, metric_title
from rlhf_lab.statistics.inference import Estimate, clustered_mean
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.pairing import seeds


def paths(results: StudyResults) -> PageSection:
    """Return the section with figures of each panel of the study; panels without policies are left out."""
    rows = [_panel_boxes(panel, f", {by}" if by else "") for by, panel in results.study.panels()]
    return PageSection(template="two.html.j2", values={"rows": rows})


def _panel_boxes(panel: Study, of_part: str) -> list[PageSection]:
    """Return the available figures of one panel of a study.

    Args:
        of_part: end of each title.
    """
    on_path = bool(len(panel.policies)) and bool(panel.policies["joined"].any())
    along = "Mean over seeds with its 95 % interval"
    # If length is the primary metric, the first figure already shows it.
    lengths = None if panel.primary == "tokens" else policy_paths(panel, "tokens")
    distance = "The last policy of each level, mean over seeds in both directions."
    return figure_boxes(
        (f"Along training{of_part}", f"{along}; levels are side by side.", policy_paths(panel, panel.primary)),
        (f"Against distance from the reference{of_part}", distance, level_frontier(panel)),
        (f"Gold against proxy{of_part}", gold_note(on_path), gold_against_proxy(panel)),
        (f"Length along training{of_part}", f"{along}.", lengths),
    )


def policy_paths(study: Study, metric: str) -> Chart | None:
    """Plot a metric of the successive policies of each level, mean and interval over seeds."""
    rows = study.policies
    if rows.empty or metric not in rows or rows["position"].nunique() < 2:
        return None
    series = []
    for colour, level in enumerate(study.levels):
        # Shift levels sideways, so that their whiskers do not cover each other.
        shift = 0.05 * (colour - (len(study.levels) - 1) / 2)
        points = []
        for position, policies in rows[rows["level"] == level].groupby("position"):
            mean = clustered_mean(policies[metric].to_numpy(dtype=float), seeds(policies))
            if not math.isnan(mean.mean):
                joined, tooltip = _on_one_path(policies), _tooltip(metric, mean, policies)
                index = float(str(position)) + shift
                points.append(Point(index, mean.mean, mean.low, mean.high, tooltip=tooltip, joined=joined))
        if points:
            series.append(Series(study.label(level), points, colour))
    if not series:
        return None
    names = " → ".join(rows.sort_values("position")["policy"].drop_duplicates())
    title = judged_title(metric, study.has_gold)
    note = f"evaluated policy: {names}" if len(names) < 70 else "evaluated policy, in order of training"
    return frontier(series, title=f"{title} along training", x_label=note, y_label=title, integers=True)


def level_frontier(study: Study) -> Chart | None:
    """Plot the primary metric against √KL of the last policy, a point per level, without lines."""
    rows, metric = study.policies, study.primary
    if rows.empty or metric not in rows or "kl" not in rows or metric == "kl":
        return None
    known = last_of_runs(rows).dropna(subset=["kl", metric])
    series = _series_of_levels(study, known, lambda policies: [_level_point(policies, metric)])
    if not series:
        return None
    title = judged_title(metric, study.has_gold)
    x_label = "√KL from the reference policy, √nats per response"
    return frontier(series, title=f"{title} against √KL of the last policy", x_label=x_label, y_label=title)


def gold_against_proxy(study: Study) -> Chart | None:
    """Plot gold against proxy reward of the successive policies of each level, mean over seeds in both directions."""
    rows = study.policies
    if rows.empty or not {"gold", "proxy"} <= set(rows) or not study.has_gold:
        return None

    def points(scored: pd.DataFrame) -> list[Point]:
        by_position = scored.groupby("position")
        return [_mean_point(policies, policies["proxy"], "proxy reward", "gold") for _, policies in by_position]

    series = _series_of_levels(study, rows.dropna(subset=["gold", "proxy"]), points)
    if not series:
        return None
    order = ", policies in order of training" if _on_one_path(rows) else ""
    return frontier(series, title=f"Gold against proxy reward{order}", x_label="proxy reward", y_label="gold reward")


def _series_of_levels(study: Study, rows: pd.DataFrame, points: Callable[[pd.DataFrame], list[Point]]) -> list[Series]:
    """Return the points of each level that has rows, in the level's colour."""
    series = []
    for colour, level in enumerate(study.levels):
        of_level = rows[rows["level"] == level]
        if len(of_level):
            series.append(Series(study.label(level), points(of_level), colour))
    return series


def _level_point(policies: pd.DataFrame, metric: str) -> Point:
    """Return a level's mean over seeds in both directions; the bound of a distance is clipped at 0."""
    point = _mean_point(policies, policies["kl"].clip(lower=0).pow(0.5), "√KL", metric)
    return dataclasses.replace(point, x_low=max(point.x_low, 0.0))


def _mean_point(policies: pd.DataFrame, x_values: pd.Series, x_name: str, metric: str) -> Point:
    """Return the mean over seeds of x values and of a metric, with intervals in both directions."""
    x = clustered_mean(x_values.to_numpy(dtype=float), seeds(policies))
    y = clustered_mean(policies[metric].to_numpy(dtype=float), seeds(policies))
    tooltip = _tooltip(metric, y, policies, {x_name: compact(x)})
    joined = _on_one_path(policies)
    return Point(x.mean, y.mean, y.low, y.high, x.low, x.high, tooltip=tooltip, joined=joined)


def _on_one_path(policies: pd.DataFrame) -> bool:
    """Return True if all of these policies are on the paths of their runs' training."""
    return bool(policies["joined"].all())


def _tooltip(metric: str, mean: Estimate, policies: pd.DataFrame, x: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a mean over seeds as tooltip entries, with the policies, an optional entry for x, and the seeds."""
    policy, seed = (", ".join(dict.fromkeys(policies[name].astype(str))) for name in ("policy", "seed"))
    return {"policy": policy, **(x or {}), **estimate_tooltip(metric_title(metric), mean, units="seeds"), "seed": seed}
