"""Turns a study in memory into what its report shows."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import Any

import pandas as pd

from rlhf_lab.figures.charts import Level, Point, Series, dots, estimate_facts, frontier
from rlhf_lab.figures.layers import Chart
from rlhf_lab.reports.study.curve_view import curve_view
from rlhf_lab.reports.study.policy_view import policy_view
from rlhf_lab.results.answer import Answer
from rlhf_lab.results.wording import compact, judged_title, metric_note, metric_title
from rlhf_lab.statistics.inference import Estimate, clustered_mean
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.front import (
    Front,
    front_cells,
    front_headings,
    front_note,
    front_title,
    fronts_of,
    standing_in_words,
)
from rlhf_lab.studies.pairing import job_names, seeds
from rlhf_lab.studies.table import HEADINGS, Section, cells, change, label, method, section_title
from rlhf_lab.studies.verdict import verdict_numbers, verdicts


def study_view(study: Study, sections: list[Section], finding: Answer) -> dict[str, Any]:
    """Everything the template of a study needs."""
    return {
        "study": study,
        "finding": finding,
        "label": label(study),
        "command": study.command,
        "counts": study.frame["status"].value_counts().to_dict(),
        "headings": (study.compare.split(".")[-1], *HEADINGS[1:]),
        "sections": [_section_entry(study, section) for section in sections],
        "figures": _panel_figures(study),
        "verdicts": [(row.claim, row.verdict, verdict_numbers(row)) for row in verdicts(study)],
        "method": method(study),
        "baseline": study.label(study.baseline),
        "curves": curve_view(study),
        "fronts": [front_entry(study, front) for front in fronts_of(study)],
        "jobs": jobs(study),
        **policy_view(study),
        "factors": study.factors,
    }


def level_dots(study: Study, sections: list[Section]) -> Chart:
    """Dot and whisker per level, every run as a small dot below its mean; sections of one metric below one another."""
    panels = dict(study.panels())
    levels = []
    for section in sections:
        completed = panels[section.by].completed
        for row in section.rows:
            jobs_of_level = completed[completed["level"] == row.level]
            runs = jobs_of_level[section.metric].tolist()
            run_names = job_names(jobs_of_level)
            name = study.label(row.level)
            if len(sections) > 1:
                name = f"{study.panel_label(section.by)}: {name}"
            reference = row.level == study.baseline
            levels.append(Level(name, row.mean, runs, reference, run_names=run_names, units="seeds"))
    title = judged_title(sections[0].metric, study.has_gold)
    compared = study.compare.rpartition(".")[2].replace("_", " ")
    return dots(levels, title=f"{title} by {compared}", x_label=title)


def primary_dots(study: Study, sections: list[Section]) -> Chart:
    """The primary metric, all values of `by` in one figure."""
    primary = [section for section in sections if section.metric == study.primary]
    return level_dots(study, primary)


def _panel_figures(study: Study) -> list[dict[str, Any]]:
    """What the policies of each part of the study did; parts without policies are left out."""
    entries = []
    for by, panel in study.panels():
        figures = {
            "paths": policy_paths(panel, study.primary),
            "frontier": level_frontier(panel),
            "proxy_gold": gold_against_proxy(panel),
            "on_path": bool(len(panel.policies)) and bool(panel.policies["joined"].any()),
            "lengths": policy_paths(panel, "tokens"),
        }
        if study.primary == "tokens":  # `paths` shows it already
            figures["lengths"] = None
        if any(figures.values()):
            entries.append({"by": by, **figures})
    return entries


def _section_entry(study: Study, section: Section) -> dict[str, Any]:
    return {
        "title": section_title(study, section),
        "note": metric_note(section.metric),
        "primary": section.metric == study.primary,
        "rows": [(cells(study, row), row.distinguishable) for row in section.rows],
        "figure": level_dots(study, [section]),
    }


def front_entry(study: Study, front: Front) -> dict[str, Any]:
    """A front's table and figure."""
    return {
        "title": front_title(front),
        "note": front_note(front),
        "headings": front_headings(front),
        "rows": [front_cells(study, row) for row in front.levels],
        "figure": front_figure(study, front),
    }


def front_figure(study: Study, front: Front) -> Chart:
    """One metric against the other, a point per level with both its intervals."""
    x_title, y_title = (metric_title(name) for name in front.metrics)
    series = []
    for colour, row in enumerate(front.levels):
        facts = {
            **estimate_facts(x_title, row.first, units="seeds"),
            y_title: compact(row.second),
            "standing": standing_in_words(study, row),
        }
        first, second = row.first, row.second
        point = Point(first.mean, second.mean, second.low, second.high, first.low, first.high, facts=facts)
        series.append(Series(study.label(row.level), [point], colour))
    return frontier(series, title=front_title(front), x_label=x_title, y_label=y_title)


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


def jobs(study: Study) -> list[dict[str, Any]]:
    """Every job with its overrides, status, what is wrong with it, and a link to its own report where there is one."""
    entries = []
    for job in study.frame.to_dict("records"):
        report = job["run"] / "report.html" if job["run"] else None
        link = os.path.relpath(report, study.path) if report and report.is_file() else None
        error = str(job["error"]).strip().splitlines()[-1] if job["error"] else ""
        overrides = [str(job[factor]) for factor in study.factors]
        remark = "; ".join(filter(None, (error, change(job))))
        entries.append(
            {
                "index": job["index"],
                "overrides": overrides,
                "status": job["status"],
                "link": link,
                "remark": remark,
            }
        )
    return entries
