"""What the policies of a study did along training: rewards, distance travelled and length, side by side by level."""

from __future__ import annotations

import dataclasses
import math

import pandas as pd

from rlhf_lab.figures.charts import Point, Series, estimate_facts, frontier
from rlhf_lab.figures.layers import Chart
from rlhf_lab.reports.run.frontier import gold_note
from rlhf_lab.reports.sections import PageSection
from rlhf_lab.reports.study.results import StudyResults
from rlhf_lab.results.wording import compact, judged_title, metric_title
from rlhf_lab.statistics.inference import Estimate, clustered_mean
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.pairing import seeds


def paths(results: StudyResults) -> PageSection:
    """Figures of each part of the study; parts without policies are left out."""
    rows = [_panel_boxes(panel, f", {by}" if by else "") for by, panel in results.study.panels()]
    return PageSection(template="two.html.j2", values={"rows": rows})


def _panel_boxes(panel: Study, of_part: str) -> list[PageSection]:
    """What can be drawn of one part of a study.

    Args:
        of_part: end of each title.
    """
    on_path = bool(len(panel.policies)) and bool(panel.policies["joined"].any())
    along = "Mean over seeds with its 95 % interval"
    drawn = [
        ("Along training", f"{along}; levels stand side by side.", policy_paths(panel, panel.primary)),
        (
            "Against distance travelled",
            "The last policy of each level, mean over seeds in both directions.",
            level_frontier(panel),
        ),
        ("Gold against proxy", gold_note(on_path), gold_against_proxy(panel)),
    ]
    if panel.primary != "tokens":  # else the first figure shows it already
        drawn.append(("Length along training", f"{along}.", policy_paths(panel, "tokens")))
    return [PageSection(f"{title}{of_part}", note, [chart]) for title, note, chart in drawn if chart]


def policy_paths(study: Study, metric: str) -> Chart | None:
    """A metric of the successive policies of each level, mean and interval over seeds."""
    rows = study.policies
    if rows.empty or metric not in rows or rows["position"].nunique() < 2:
        return None
    series = []
    for colour, level in enumerate(study.levels):
        points = []
        for position, policies in rows[rows["level"] == level].groupby("position"):
            seed_N = policies["seed"].astype(str).to_numpy()
            mean = clustered_mean(policies[metric].to_numpy(dtype=float), seed_N)
            if not math.isnan(mean.mean):
                # levels stand side by side, so that their whiskers do not cover one another
                place = float(str(position)) + 0.05 * (colour - (len(study.levels) - 1) / 2)
                policy = ", ".join(dict.fromkeys(policies["policy"]))
                facts = {"policy": policy, **_seed_facts(metric, mean, policies)}
                is_joined = _on_one_path(policies)
                points.append(Point(place, mean.mean, mean.low, mean.high, facts=facts, joined=is_joined))
        if points:
            series.append(Series(study.label(level), points, colour))
    names = " → ".join(rows.sort_values("position")["policy"].drop_duplicates())
    title = judged_title(metric, study.has_gold)
    note = f"evaluated policy: {names}" if len(names) < 70 else "evaluated policy, in order of training"
    if not series:
        return None
    return frontier(series, title=f"{title} along training", x_label=note, y_label=title, integers=True)


def level_frontier(study: Study) -> Chart | None:
    """The primary metric against √KL of the last policy, a point per run, joined by nothing."""
    rows, metric = study.policies, study.primary
    if rows.empty or metric not in rows or "kl" not in rows or metric == "kl":
        return None
    last = rows.loc[rows.groupby("index")["position"].idxmax()]
    series = []
    for colour, level in enumerate(study.levels):
        policies = last[(last["level"] == level) & last["kl"].notna() & last[metric].notna()]
        if len(policies):
            series.append(Series(study.label(level), [_level_point(policies, metric)], colour))
    if not series:
        return None
    title = judged_title(metric, study.has_gold)
    x_label = "√KL from the reference policy, √nats per response"
    return frontier(series, title=f"{title} against √KL of the last policy", x_label=x_label, y_label=title)


def gold_against_proxy(study: Study) -> Chart | None:
    """Gold against proxy reward of the successive policies of each level, mean over seeds in both directions."""
    rows = study.policies
    if rows.empty or not {"gold", "proxy"} <= set(rows) or not study.has_gold:
        return None
    series = []
    for colour, level in enumerate(study.levels):
        scored = rows[(rows["level"] == level) & rows["gold"].notna() & rows["proxy"].notna()]
        points = [
            _mean_point(policies, policies["proxy"], "proxy reward", "gold")
            for _, policies in scored.groupby("position")
        ]
        if points:
            series.append(Series(study.label(level), points, colour))
    if not series:
        return None
    order = ", policies in order of training" if _on_one_path(rows) else ""
    title = f"Gold against proxy reward{order}"
    return frontier(series, title=title, x_label="proxy reward", y_label="gold reward")


def _level_point(policies: pd.DataFrame, metric: str) -> Point:
    """A level's mean over seeds in both directions; a distance is not negative."""
    point = _mean_point(policies, policies["kl"].clip(lower=0).pow(0.5), "√KL", metric)
    return dataclasses.replace(point, x_low=max(point.x_low, 0.0))


def _mean_point(policies: pd.DataFrame, x_values: pd.Series, x_name: str, metric: str) -> Point:
    x = clustered_mean(x_values.to_numpy(dtype=float), seeds(policies))
    y = clustered_mean(policies[metric].to_numpy(dtype=float), seeds(policies))
    policy = ", ".join(dict.fromkeys(policies["policy"]))
    facts = {"policy": policy, x_name: compact(x), **_seed_facts(metric, y, policies)}
    return Point(x.mean, y.mean, y.low, y.high, x.low, x.high, facts=facts, joined=_on_one_path(policies))


def _on_one_path(policies: pd.DataFrame) -> bool:
    """Whether all of these policies lie on the paths of their runs' training."""
    return bool(policies["joined"].all())


def _seed_facts(metric: str, mean: Estimate, policies: pd.DataFrame) -> dict[str, str]:
    """A mean over seeds for a tooltip, which also names the seeds."""
    facts = estimate_facts(metric_title(metric), mean, units="seeds")
    names = ", ".join(dict.fromkeys(policies["seed"].astype(str)))
    return {**facts, "seed": names}
