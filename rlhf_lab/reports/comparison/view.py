"""Turns a comparison into what its page and the console show: finding, tables, figures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from rlhf_lab.figures.charts import Level, Point, Series, dots, estimate_facts, frontier
from rlhf_lab.figures.layers import Chart
from rlhf_lab.reports.comparison.compare import Difference, Side, run_differences
from rlhf_lab.reports.comparison.remarks import run_remarks, study_remarks
from rlhf_lab.reports.comparison.scales import mismatches
from rlhf_lab.reports.comparison.setting_changes import ABSENT, origin_changes, plan_changes, setting_changes
from rlhf_lab.reports.comparison.stored import COSTS, stored_finding, stored_numbers
from rlhf_lab.reports.comparison.studies import compared_jobs, study_differences
from rlhf_lab.reports.run.samples import samples_section
from rlhf_lab.reports.run.training import overlaid_curves
from rlhf_lab.reports.sections import Page, PageSection, Table
from rlhf_lab.results.gains import PROMPT
from rlhf_lab.results.paths import policies_on_path
from rlhf_lab.results.rundir import Run
from rlhf_lab.results.samples import pick_samples
from rlhf_lab.results.wording import compact, judged_title, metric_note, metric_title, p_text, signed
from rlhf_lab.statistics.inference import Estimate
from rlhf_lab.studies.finding import not_told_apart, told_apart
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.pairing import job_names

QUESTIONS = ("gold", "correct", "proxy")
"""The metric that the finding is about: the first of these that both runs have."""
HEADINGS = ("A", "B", "B − A", "p", "p (Holm)", "detectable")
SAMPLE_BYTES = 30_000
"""Of the samples on a page."""
DETECTABLE = "Detectable: the difference that one test at 5 % would find with 80 % power; Holm asks for more"
SCOPE = (
    "One run each: the tests tell these two policies apart, not the settings behind them, which takes several seeds "
    "(a study)."
)


def run_comparison(a: Side, b: Side) -> dict[str, Any]:
    """Everything the page of two runs needs."""
    differences = run_differences(a, b)
    tested = [difference for difference in differences if difference.tested]
    changes = setting_changes(a.run, b.run)
    stored = stored_numbers(a, b, [difference.metric for difference in differences])
    return {
        "kind": "run",
        "title": f"{a.name} against {b.name}",
        "sides": [_run_facts(side) for side in (a, b)],
        "finding": run_finding(a, b, tested) if tested else stored_finding(a, b, stored),
        "remarks": run_remarks(a, b),
        "tables": [_table_view("Metrics of replies", "metric", differences)] if differences else [],
        "tests": _test_notes(differences),
        "boxes": _figure_boxes(a, b, differences),
        "scope": SCOPE if tested else "",
        "stored": [row for row, has_interval in stored if has_interval],
        "bare": [row for row, has_interval in stored if not has_interval],
        "charts": overlaid_curves({side.name: side.run.metrics for side in (a, b)}),
        "costs": costs(a.run, b.run),
        "settings": [change for change in changes if ABSENT not in change],
        "only_one": [change for change in changes if ABSENT in change],
        "origin": origin_changes(a.run, b.run),
        "samples": samples_section(pick_samples(_as_one_run(a, b, bool(differences)), budget=SAMPLE_BYTES)),
    }


def study_comparison(a: Study, b: Study) -> dict[str, Any]:
    """Everything the page of two studies needs."""
    differences = study_differences(a, b)
    groups: dict[str, list[Difference]] = {}  # metric → its levels
    for difference in differences:
        groups.setdefault(difference.metric, []).append(difference)
    has_gold = a.has_gold and b.has_gold
    return {
        "kind": "study",
        "title": f"A {a.recipe} against B {b.recipe}",
        "sides": [_study_facts(letter, study) for letter, study in (("A", a), ("B", b))],
        "finding": study_finding(a, b, differences),
        "remarks": study_remarks(a, b),
        "tables": [_table_view(judged_title(metric, has_gold), "level", group) for metric, group in groups.items()],
        "tests": _test_notes(differences),
        "boxes": [],
        "scope": "",
        "stored": [],
        "bare": [],
        "charts": [(judged_title(metric, has_gold), level_dots(a, b, group)) for metric, group in groups.items()],
        "costs": [],
        "settings": plan_changes(a, b),
        "only_one": [],
        "origin": [],
        "samples": None,
    }


def comparison_page(view: Mapping[str, Any]) -> Page:
    """The page of `run_comparison` or `study_comparison`."""
    sections = {
        "comparison": PageSection(template=f"{__package__}:compare.html.j2", values={**view, "headings": HEADINGS}),
    }
    if view["samples"]:
        sections["samples"] = view["samples"]
    if view["costs"]:
        sections["costs"] = PageSection("Cost", table=Table(("of the stage itself", "A", "B", "B ÷ A"), view["costs"]))
    measured = "in these two runs" if view["kind"] == "run" else "in the jobs of these two studies"
    return Page(view["title"], sections, f"Every number is measured {measured}. Made by `python -m rlhf_lab compare`.")


def run_finding(a: Side, b: Side, differences: Sequence[Difference]) -> str:
    """What the metric in question shows, then which others differ; generated from the numbers alone."""

    def rank(difference: Difference) -> int:
        metric = difference.metric
        return QUESTIONS.index(metric) if metric in QUESTIONS else len(QUESTIONS)

    primary = min(differences, key=rank)
    row = primary.row(b.name)
    unit = "shared prompt" if "unpaired" not in primary.versus.test else "prompt"
    count = primary.versus.difference.clusters
    sentences = [
        f"Over {count} {unit}{'s' * (count != 1)}, the {metric_title(primary.metric)} of `{a.name}` is "
        f"{compact(primary.a)} and that of `{b.name}` {compact(primary.b)}."
    ]
    if primary.distinguishable:
        sentences.append(told_apart(f"`{b.name}`", row))
    else:
        sentences.append(not_told_apart({f"`{b.name}`": row}, f"`{a.name}`", unit="prompt"))
    secondary = [difference for difference in differences if difference is not primary]
    if secondary:
        distinct = [
            f"{metric_title(difference.metric)} {signed(difference.versus.difference)}"
            for difference in secondary
            if difference.distinguishable
        ]
        metrics = ", ".join(distinct) if distinct else "none"
        sentences.append(f"Of the {len(secondary)} other metrics these differ (B − A): {metrics}.")
    return " ".join(sentences)


def study_finding(a: Study, b: Study, differences: Sequence[Difference]) -> str:
    """A's primary metric, level by level."""
    if not differences:
        return "No finding: no metric of any shared level has a result in both studies."
    primary_metric = differences[0].metric
    primary = [difference for difference in differences if difference.metric == primary_metric]
    title = judged_title(primary_metric, a.has_gold and b.has_gold)
    values = "; ".join(f"of `{level.level}`, {compact(level.a)} in A and {compact(level.b)} in B" for level in primary)
    sentences = [f"{title[:1].upper()}{title[1:]} {values}."]
    for level in primary:
        if level.distinguishable:
            sentences.append(told_apart(f"B at {level.level}", level.row(level.level)))
    unclear = {
        f"B at {level.level}": level.row(level.level) for level in primary if level.tested and not level.distinguishable
    }
    if unclear:
        sentences.append(not_told_apart(unclear, "A"))
    if untested := [f"`{level.level}`" for level in primary if not level.tested]:
        sentences.append(f"Not tested: {', '.join(untested)}.")
    secondary = [difference for difference in differences if difference.tested and difference.metric != primary_metric]
    if secondary:
        distinct = sum(difference.distinguishable for difference in secondary)
        sentences.append(f"Of {len(secondary)} comparisons of other metrics, {distinct} differ after Holm.")
    return " ".join(sentences)


def _table_view(title: str, first: str, differences: Sequence[Difference]) -> dict[str, Any]:
    """A table with a row per metric of two runs, or per level of one metric of two studies.

    Args:
        first: heading of the first column.
    """
    rows = [
        (*cells(difference), metric_note(difference.metric), difference.distinguishable) for difference in differences
    ]
    return {"title": title, "first": first, "rows": rows}


def _test_notes(differences: Sequence[Difference]) -> list[str]:
    """The tests behind the p-values, each once, and what the last column means."""
    names = dict.fromkeys(difference.versus.test for difference in differences if difference.tested)
    notes = [name[:1].upper() + name[1:] for name in names]
    return [*notes, DETECTABLE] if notes else []


def cells(difference: Difference) -> tuple[str, ...]:
    """A row as text: level or metric, then in the order of HEADINGS; of what is not tested the two numbers."""
    heading = difference.level or metric_title(difference.metric)
    of_a, of_b = compact(difference.a), compact(difference.b)
    if not difference.tested:
        return (heading, of_a, of_b, *["–"] * 4)
    versus = difference.versus
    effect = versus.minimum_detectable_effect
    detectable = compact(effect) if effect else "–"
    if math.isinf(effect):
        detectable = "nothing"
    gap = signed(versus.difference)
    return (heading, of_a, of_b, gap, p_text(versus.p_value), p_text(difference.p_holm), detectable)


def _figure_boxes(a: Side, b: Side, differences: Sequence[Difference]) -> list[PageSection]:
    boxes = []
    if effects := effect_dots(a, differences):
        note = "Whiskers are 95 % intervals. One that crosses the dotted line is compatible with no difference."
        boxes.append(PageSection("Which way, and how much", note, [effects]))
    if policies := policy_frontier(a, b):
        note = (
            "Each run by its distance from the policy that it measures KL from. A line joins the policies of one "
            "training."
        )
        boxes.append(PageSection("Every evaluated policy", note, [policies]))
    return boxes


def effect_dots(a: Side, differences: Sequence[Difference]) -> Chart | None:
    """B − A of every metric in standard deviations of A's replies, so that metrics stand on one axis."""
    levels = [Level("no difference", Estimate(0.0, -math.inf, math.inf, 0, 0), reference=True)]
    for difference in differences:
        if not difference.tested:
            continue
        scale = float(pd.to_numeric(a.replies[difference.metric], errors="coerce").std())
        if scale > 0 and math.isfinite(scale):
            gap = difference.versus.difference
            scaled = Estimate(gap.mean / scale, gap.low / scale, gap.high / scale, gap.n, gap.clusters)
            levels.append(Level(metric_title(difference.metric), scaled))
    if len(levels) == 1:  # only the line of no difference
        return None
    title = "Differences in standard deviations of A's replies"
    return dots(levels, title=title, x_label="B − A, standard deviations", width=520)


def level_dots(a: Study, b: Study, differences: Sequence[Difference]) -> Chart:
    """One metric of both studies, level by level: means with intervals, and the jobs behind them."""
    levels = []
    for difference in differences:
        jobs = compared_jobs(a, b, difference.level)
        sides = (("A", difference.a, jobs.a), ("B", difference.b, jobs.b))
        for colour, (letter, estimate, jobs_of_side) in enumerate(sides):
            runs = jobs_of_side[difference.metric].tolist()
            name = f"{difference.level}, {letter}"
            levels.append(Level(name, estimate, runs, colour=colour, run_names=job_names(jobs_of_side), units="seeds"))
    title = judged_title(differences[0].metric, a.has_gold and b.has_gold)
    return dots(levels, title=f"{title} of A and B by level", x_label=title)


def policy_frontier(a: Side, b: Side) -> Chart | None:
    """The metric in question of every evaluated policy against √KL, a line per training."""
    scale_mismatches = mismatches(a.run, b.run)
    for metric in QUESTIONS:
        if any(mismatch.covers(metric) for mismatch in scale_mismatches):
            continue
        series = [
            Series(side.name, points, colour)
            for colour, side in enumerate((a, b))
            if (points := _policy_points(side.run, metric))
        ]
        if len(series) == 2:
            title = metric_title(metric)
            x_label = "√KL from each run's own reference, √nats per response"
            return frontier(series, title=f"{title} against √KL of every policy", x_label=x_label, y_label=title)
    return None


def _policy_points(run: Run, metric: str) -> list[Point]:
    points = []
    path = policies_on_path(run)
    for policy in run.policies:
        kl = policy.metrics.get("kl")
        value = policy.metrics.get(metric)
        if kl and value and not math.isnan(kl.mean + value.mean):
            root_kl = math.sqrt(max(kl.mean, 0.0))  # an estimate of a small KL may come out below 0
            seed = str(run.manifest.get("seed", "–"))
            facts = {"policy": policy.name, "KL": compact(kl), **estimate_facts(metric_title(metric), value)}
            point = Point(root_kl, value.mean, value.low, value.high, label=policy.name, facts={**facts, "seed": seed})
            points.append(dataclasses.replace(point, joined=policy.name in path))
    return sorted(points, key=lambda point: point.x)


def costs(a: Run, b: Run) -> list[tuple[str, str, str, str]]:
    """(cost, A, B, B ÷ A): time, memory, steps and what was trained."""
    rows = []
    for name in COSTS:
        of_a, of_b = ((run.cost.get(name) or run.results.get(name)) for run in (a, b))
        if of_a or of_b:
            value_a = of_a.mean if of_a else math.nan
            value_b = of_b.mean if of_b else math.nan
            rows.append(_cost_row(metric_title(name), value_a, value_b))
    steps_a, steps_b = (float(run.metrics["step"].max()) if "step" in run.metrics else math.nan for run in (a, b))
    return [*rows, _cost_row("last logged step", steps_a, steps_b)]


def _cost_row(name: str, a: float, b: float) -> tuple[str, str, str, str]:
    ratio = f"× {compact(b / a)}" if a and math.isfinite(b / a) else "–"
    return name, compact(a), compact(b), ratio


def _as_one_run(a: Side, b: Side, paired: bool) -> Run:
    """Both runs' replies to the prompts they share, as if one run had evaluated two policies."""
    replies = pd.DataFrame()
    if paired:
        sides = [side.replies.assign(policy=side.name) for side in (a, b)]
        replies = pd.concat(sides, ignore_index=True)
    if len(replies):
        policies_per_prompt = replies.groupby(PROMPT)["policy"].transform("nunique")
        replies = replies[policies_per_prompt == 2]
    return dataclasses.replace(a.run, evaluation=replies, policies=())


def _run_facts(side: Side) -> dict[str, Any]:
    run = side.run
    facts = [
        ("policy", side.policy or ""),
        ("seed", run.manifest.get("seed")),
        ("run", run.path),
        ("code", str(run.manifest.get("git_sha") or "")[:10]),
    ]
    shown = [(name, str(value)) for name, value in facts if value not in (None, "")]
    return {"name": side.name, "recipe": run.recipe, "status": run.status, "facts": shown}


def _study_facts(letter: str, study: Study) -> dict[str, Any]:
    status = "completed" if not len(study.incomplete) else "partly completed"
    facts = [("compared", study.compare), ("baseline", study.baseline), ("study", str(study.path))]
    return {"name": letter, "recipe": study.recipe, "status": status, "facts": facts}
