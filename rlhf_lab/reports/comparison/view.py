"""Turns a comparison into what its page and the console show: finding, tables, figures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from rlhf_lab.figures.charts import Level, Point, Series, dots, frontier
from rlhf_lab.reports.comparison.compare import Difference, Side, run_differences
from rlhf_lab.reports.comparison.remarks import run_remarks, study_remarks
from rlhf_lab.reports.comparison.scales import mismatches
from rlhf_lab.reports.comparison.settings import ABSENT, origin_changes, plan_changes, setting_changes
from rlhf_lab.reports.comparison.stored import COSTS, stored_finding, stored_numbers
from rlhf_lab.reports.comparison.studies import compared_jobs, study_differences
from rlhf_lab.reports.run.training import overlaid_curves
from rlhf_lab.results.gains import PROMPT
from rlhf_lab.results.rundir import Run
from rlhf_lab.results.samples import pack, pick_samples
from rlhf_lab.results.wording import compact, metric_note, metric_title, p_text, signed
from rlhf_lab.statistics.inference import Estimate
from rlhf_lab.studies.finding import not_told_apart, told_apart
from rlhf_lab.studies.frame import Study

QUESTIONS = ("gold", "correct", "proxy")
"""The metric that the finding is about: the first of these that both runs have."""
HEADINGS = ("A", "B", "B − A", "p", "p (Holm)", "detectable")
SAMPLE_BYTES = 30_000
DETECTABLE = "Detectable: the difference that one test at 5 % would find with 80 % power; Holm asks for more"
SCOPE = (
    "One run each: the tests tell these two policies apart, not the settings behind them, which takes several seeds "
    "(a study)."
)


def run_comparison(a: Side, b: Side) -> dict[str, Any]:
    """Everything the page of two runs needs."""
    differences = run_differences(a, b)
    tested = [one for one in differences if one.tested]
    changes = setting_changes(a.run, b.run)
    stored = stored_numbers(a, b, [one.metric for one in differences])
    samples = pick_samples(_together(a, b, bool(differences)), budget=SAMPLE_BYTES)
    return {
        "kind": "run",
        "title": f"{a.name} against {b.name}",
        "sides": [_run_facts(side) for side in (a, b)],
        "finding": run_finding(a, b, tested) if tested else stored_finding(a, b, stored),
        "remarks": run_remarks(a, b),
        "tables": [_table("", differences)] if differences else [],
        "tests": _tests(differences),
        "effects": effect_dots(a, differences),
        "frontier": policy_frontier(a, b),
        "scope": SCOPE if tested else "",
        "stored": [row for row, told in stored if told],
        "bare": [row for row, told in stored if not told],
        "charts": overlaid_curves({side.name: side.run.metrics for side in (a, b)}),
        "costs": costs(a.run, b.run),
        "settings": [change for change in changes if ABSENT not in change],
        "only_one": [change for change in changes if ABSENT in change],
        "origin": origin_changes(a.run, b.run),
        "samples": samples,
        "samples_json": pack(samples),
    }


def study_comparison(a: Study, b: Study) -> dict[str, Any]:
    """Everything the page of two studies needs."""
    differences = study_differences(a, b)
    metrics = list(dict.fromkeys(one.metric for one in differences))
    groups = {metric: [one for one in differences if one.metric == metric] for metric in metrics}
    empty = {"policies": [], "prompts": [], "total": 0}
    return {
        "kind": "study",
        "title": f"A {a.recipe} against B {b.recipe}",
        "sides": [_study_facts(letter, study) for letter, study in (("A", a), ("B", b))],
        "finding": study_finding(a, b, differences),
        "remarks": study_remarks(a, b),
        "tables": [_table(metric, group) for metric, group in groups.items()],
        "tests": _tests(differences),
        "effects": None,
        "frontier": None,
        "scope": "",
        "stored": [],
        "bare": [],
        "charts": [(metric_title(metric), level_dots(a, b, group)) for metric, group in groups.items()],
        "costs": [],
        "settings": plan_changes(a, b),
        "only_one": [],
        "origin": [],
        "samples": empty,
        "samples_json": pack(empty),
    }


def run_finding(a: Side, b: Side, differences: Sequence[Difference]) -> str:
    """What the metric in question shows, then which others differ; generated from the numbers alone."""
    chosen = min(differences, key=lambda one: QUESTIONS.index(one.metric) if one.metric in QUESTIONS else 9)
    row = chosen.row(b.name)
    unit = "shared prompt" if "unpaired" not in chosen.versus.test else "prompt"
    count = chosen.versus.difference.clusters
    sentences = [
        f"Over {count} {unit}{'s' * (count != 1)}, the {metric_title(chosen.metric)} of `{a.name}` is "
        f"{compact(chosen.a)} and that of `{b.name}` {compact(chosen.b)}.",
        told_apart(f"`{b.name}`", row)
        if chosen.distinguishable
        else not_told_apart({f"`{b.name}`": row}, f"`{a.name}`", unit="prompt"),
    ]
    others = [one for one in differences if one is not chosen]
    apart = [f"{metric_title(one.metric)} {signed(one.versus.difference)}" for one in others if one.distinguishable]
    if others:
        told = ", ".join(apart) if apart else "none"
        sentences.append(f"Of the {len(others)} other metrics these differ (B − A): {told}.")
    return " ".join(sentences)


def study_finding(a: Study, b: Study, differences: Sequence[Difference]) -> str:
    """A's primary metric, level by level."""
    if not differences:
        return "No finding: no metric of any shared level has a result in both studies."
    chosen = [one for one in differences if one.metric == differences[0].metric]
    title = metric_title(chosen[0].metric)
    values = "; ".join(f"of `{one.level}`, {compact(one.a)} in A and {compact(one.b)} in B" for one in chosen)
    sentences = [f"{title[:1].upper()}{title[1:]} {values}."]
    rows = {f"B at {one.level}": (one, one.row(one.level)) for one in chosen}
    sentences += [told_apart(name, row) for name, (one, row) in rows.items() if one.distinguishable]
    if unclear := {name: row for name, (one, row) in rows.items() if one.tested and not one.distinguishable}:
        sentences.append(not_told_apart(unclear, "A"))
    if untested := [f"`{one.level}`" for one in chosen if not one.tested]:
        sentences.append(f"Not tested: {', '.join(untested)}.")
    rest = [one for one in differences if one.tested and one.metric != differences[0].metric]
    if rest:
        apart = sum(one.distinguishable for one in rest)
        sentences.append(f"Of {len(rest)} comparisons of other metrics, {apart} differ after Holm.")
    return " ".join(sentences)


def _table(metric: str, differences: Sequence[Difference]) -> dict[str, Any]:
    """Rows of the table: per metric of two runs, or per level of one metric of two studies."""
    return {
        "title": metric_title(metric) if metric else "Metrics of replies",
        "first": "level" if metric else "metric",
        "rows": [(*cells(one), metric_note(one.metric), one.distinguishable) for one in differences],
    }


def _tests(differences: Sequence[Difference]) -> list[str]:
    """The tests behind the p-values, each once, and what the last column means."""
    names = dict.fromkeys(one.versus.test for one in differences if one.tested)
    words = [name[:1].upper() + name[1:] for name in names]
    return [*words, DETECTABLE] if words else []


def cells(one: Difference) -> tuple[str, ...]:
    """A row as text: what, then in the order of HEADINGS; of what is not tested the two numbers."""
    what, of_a, of_b = one.level or metric_title(one.metric), compact(one.a), compact(one.b)
    if not one.tested:
        return (what, of_a, of_b, *["–"] * 4)
    effect = one.versus.minimum_detectable_effect
    detectable = "nothing" if math.isinf(effect) else compact(effect) if effect else "–"
    gap = signed(one.versus.difference)
    return (what, of_a, of_b, gap, p_text(one.versus.p_value), p_text(one.p_holm), detectable)


def effect_dots(a: Side, differences: Sequence[Difference]) -> str | None:
    """B − A of every metric in standard deviations of A's replies, so that metrics stand on one axis."""
    levels = [Level("no difference", Estimate(0.0, -math.inf, math.inf, 0, 0), reference=True)]
    for one in (each for each in differences if each.tested):
        scale = float(pd.to_numeric(a.replies[one.metric], errors="coerce").std())
        if scale > 0 and math.isfinite(scale):
            gap = one.versus.difference
            scaled = Estimate(gap.mean / scale, gap.low / scale, gap.high / scale, gap.n, gap.clusters)
            levels.append(Level(metric_title(one.metric), scaled))
    title = "Differences in standard deviations of A's replies"
    return dots(levels, title=title, x_label="B − A, standard deviations", width=520) if len(levels) > 1 else None


def level_dots(a: Study, b: Study, differences: Sequence[Difference]) -> str:
    """One metric of both studies, level by level: means with intervals, and the jobs behind them."""
    levels = []
    for one in differences:
        jobs = compared_jobs(a, b, one.level)
        for colour, (letter, estimate, side) in enumerate((("A", one.a, jobs.a), ("B", one.b, jobs.b))):
            runs = side[one.metric].tolist()
            levels.append(Level(f"{one.level}, {letter}", estimate, runs, colour=colour))
    title = metric_title(differences[0].metric)
    return dots(levels, title=f"{title} of A and B by level", x_label=title)


def policy_frontier(a: Side, b: Side) -> str | None:
    """The metric in question of every evaluated policy against √KL, a line per run."""
    odd = mismatches(a.run, b.run)
    for metric in (name for name in QUESTIONS if not any(one.covers(name) for one in odd)):
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
    for policy in run.policies:
        nats, value = policy.metrics.get("kl"), policy.metrics.get(metric)
        if nats and value and not math.isnan(nats.mean + value.mean):
            root = math.sqrt(max(nats.mean, 0.0))
            points.append(Point(root, value.mean, value.low, value.high, label=policy.name))
    return sorted(points, key=lambda point: point.x)


def costs(a: Run, b: Run) -> list[tuple[str, str, str, str]]:
    """(what, A, B, B ÷ A): time, memory, steps and what was trained."""
    found = []
    for name in COSTS:
        of_a, of_b = ((run.cost.get(name) or run.results.get(name)) for run in (a, b))
        if of_a or of_b:
            found.append(_cost(metric_title(name), of_a.mean if of_a else math.nan, of_b.mean if of_b else math.nan))
    steps = [float(run.metrics["step"].max()) if "step" in run.metrics else math.nan for run in (a, b)]
    return [*found, _cost("last logged step", *steps)]


def _cost(name: str, a: float, b: float) -> tuple[str, str, str, str]:
    return name, compact(a), compact(b), f"× {compact(b / a)}" if a and math.isfinite(b / a) else "–"


def _together(a: Side, b: Side, paired: bool) -> Run:
    """Both runs' replies to the prompts they share, as if one run had evaluated two policies."""
    rows = [side.replies.assign(policy=side.name) for side in (a, b)] if paired else []
    both = pd.concat(rows, ignore_index=True) if rows else pd.DataFrame()
    if len(both):
        answered = both.groupby(PROMPT)["policy"].transform("nunique")
        both = both[answered == 2]
    return dataclasses.replace(a.run, evaluation=both, policies=())


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
