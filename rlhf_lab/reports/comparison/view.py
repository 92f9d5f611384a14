"""Content of a comparison's page and console output: conclusion, tables, figures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from rlhf_lab.figures.charts import Level, Point, Series, dot_chart, estimate_tooltip, frontier
from rlhf_lab.figures.layers import Chart
from rlhf_lab.reports.comparison.compare import (
    COSTS,
    Difference,
    Side,
    cluster_unit,
    run_differences,
    stored_conclusion,
    stored_numbers,
)
from rlhf_lab.reports.comparison.notes import run_notes, study_notes
from rlhf_lab.reports.comparison.scales import ABSENT, mismatches, origin_changes, plan_changes, setting_changes
from rlhf_lab.reports.comparison.studies import compared_jobs, study_differences
from rlhf_lab.reports.run.samples import samples_section
from rlhf_lab.reports.run.training import overlaid_curves
from rlhf_lab.reports.sections import PageSection, ReportPage, ReportTable, figure_boxes
from rlhf_lab.results.gains import PROMPT, policies_on_path
from rlhf_lab.results.rundir import StoredRun
from rlhf_lab.results.samples import pick_samples
from rlhf_lab.results.wording import (
    compact,
    judged_title,
    metric_note,
    metric_title,
    p_equals,
    p_text,
    signed,
    usual_size,
    with_own_size,
)
from rlhf_lab.statistics.inference import Comparison, Estimate, repetitions_to_decide
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.pairing import job_names
from rlhf_lab.studies.replication import list_in_words

QUESTIONS = ("gold", "correct", "proxy")
"""Metrics that the conclusion may be about, in order of preference; the first one that both runs have is used."""
HEADINGS = ("A", "B", "B − A", "p", "p (Holm)", "detectable")
SAMPLE_BYTES = 30_000
"""Maximum size of the samples on a page."""
DETECTABLE = "Detectable: the difference that one test at 5 % would find with 80 % power; Holm's adjustment needs more"
OWN_SIZE = "A difference over another number of pairs is followed by its counts in brackets (pairs / independent units)"
EFFECTS = "Whiskers are 95 % intervals. One that crosses the dotted line is compatible with no difference."
POLICIES = (
    "Each run by its distance from the policy from which its KL is measured. A line joins the policies of one training "
    "run."
)
SCOPE = (
    "One run each: the tests compare these two policies, not the settings behind them, which needs several seeds (a "
    "study)."
)


NOT_OF_STUDIES: dict[str, Any] = {"clustered_by": "", "scope": "", "samples": None}
NOT_OF_STUDIES |= {name: [] for name in ("boxes", "stored", "bare", "costs", "only_one", "origin")}
"""Values of the page of two runs that the page of two studies does not have."""


def run_comparison(a: Side, b: Side) -> dict[str, Any]:
    """Return all values of the page of two runs."""
    differences = run_differences(a, b)
    # Metrics on different scales are listed, but not tested.
    tested = [difference for difference in differences if difference.tested]
    changes = setting_changes(a.run, b.run)
    stored = stored_numbers(a, b, [difference.metric for difference in differences])
    both_runs = _as_one_run(a, b, bool(differences))
    samples = pick_samples(both_runs, budget=SAMPLE_BYTES)
    # The keys are read by compare.html.j2 and by `report.printed`.
    return {
        "kind": "run",
        "clustered_by": cluster_unit(a, b).name,
        "title": f"{a.name} against {b.name}",
        "sides": [_run_metadata(side) for side in (a, b)],
        "finding": run_conclusion(a, b, tested) if tested else stored_conclusion(a, b, stored),
        "remarks": run_notes(a, b),
        "tables": [_table_view("Metrics of responses", "metric", differences)] if differences else [],
        "tests": _test_notes(differences),
        "boxes": figure_boxes(
            ("Direction and size of the differences", EFFECTS, effect_dots(a, differences)),
            ("Every evaluated policy", POLICIES, policy_frontier(a, b)),
        ),
        "scope": SCOPE if tested else "",
        "stored": [row for row, has_interval in stored if has_interval],
        "bare": [row for row, has_interval in stored if not has_interval],
        "charts": overlaid_curves({side.name: side.run.metrics for side in (a, b)}),
        "costs": costs(a.run, b.run),
        "settings": [change for change in changes if ABSENT not in change],
        "only_one": [change for change in changes if ABSENT in change],
        "origin": origin_changes(a.run, b.run),
        "samples": samples_section(samples),
    }


def study_comparison(a: Study, b: Study) -> dict[str, Any]:
    """Return all values of the page of two studies."""
    differences = study_differences(a, b)
    # Differences are in the order of metrics, so that the groups keep this order.
    groups: dict[str, list[Difference]] = {}  # metric → its levels
    for difference in differences:
        groups.setdefault(difference.metric, []).append(difference)
    has_gold = a.has_gold and b.has_gold
    return {
        **NOT_OF_STUDIES,
        "kind": "study",
        "title": f"A {a.recipe} against B {b.recipe}",
        "sides": [_study_metadata(letter, study) for letter, study in (("A", a), ("B", b))],
        "finding": study_conclusion(a, b, differences),
        "remarks": study_notes(a, b),
        "tables": [_table_view(judged_title(metric, has_gold), "level", group) for metric, group in groups.items()],
        "tests": _test_notes(differences),
        "charts": [(judged_title(metric, has_gold), level_dots(a, b, group)) for metric, group in groups.items()],
        "settings": plan_changes(a, b),
    }


def comparison_page(view: Mapping[str, Any]) -> ReportPage:
    """Return the page of `run_comparison` or `study_comparison`."""
    sections = {
        "comparison": PageSection(template=f"{__package__}:compare.html.j2", values={**view, "headings": HEADINGS})
    }
    if view["samples"]:
        sections["samples"] = view["samples"]
    if view["costs"]:
        sections["costs"] = PageSection(
            "Cost", table=ReportTable(("of the stage itself", "A", "B", "B ÷ A"), view["costs"])
        )
    measured = "in these two runs" if view["kind"] == "run" else "in the jobs of these two studies"
    footer = f"Every number is measured {measured}. Written by `python -m rlhf_lab compare`."
    return ReportPage(view["title"], sections, footer)


def run_conclusion(a: Side, b: Side, differences: Sequence[Difference]) -> str:
    """Return the result for the primary metric, then the other metrics that differ, generated from the numbers."""

    # The first metric in the order of QUESTIONS, else the first of all.
    order = [*QUESTIONS, *(difference.metric for difference in differences)]
    primary = min(differences, key=lambda difference: order.index(difference.metric))
    unit = cluster_unit(a, b)
    count = primary.versus.difference.clusters
    units = unit.noun if count == 1 else unit.plural
    # An unpaired test counts the units of both sides.
    if "unpaired" not in primary.versus.test:
        units = f"shared {units}"
    sentences = [
        f"Over {count} {units}, the {metric_title(primary.metric)} of `{a.name}` is "
        f"{compact(primary.a)} and that of `{b.name}` {compact(primary.b)}."
    ]
    if primary.distinguishable:
        sentences.append(distinguishable(f"`{b.name}`", primary.versus, primary.p_holm))
    else:
        sentences.append(indistinguishable({f"`{b.name}`": primary.versus}, f"`{a.name}`", unit=unit.noun))
    if secondary := [other for other in differences if other is not primary]:
        distinct = [other for other in secondary if other.distinguishable]
        changes = [f"{metric_title(other.metric)} {signed(other.versus.difference)}" for other in distinct]
        listed = ", ".join(changes) or "none"
        sentences.append(f"Of the {len(secondary)} other metrics, these differ (B − A): {listed}.")
    return " ".join(sentences)


def study_conclusion(a: Study, b: Study, differences: Sequence[Difference]) -> str:
    """Return the result for A's primary metric, level by level."""
    if not differences:
        return "No finding: no metric of any shared level has a result in both studies."
    primary_metric = differences[0].metric
    primary = [difference for difference in differences if difference.metric == primary_metric]
    title = judged_title(primary_metric, a.has_gold and b.has_gold)
    values = "; ".join(f"at `{level.level}`, {compact(level.a)} in A and {compact(level.b)} in B" for level in primary)
    sentences = [f"{title[:1].upper()}{title[1:]} {values}."]
    for level in primary:
        if level.distinguishable:
            sentences.append(distinguishable(f"B at {level.level}", level.versus, level.p_holm))
    unclear = {f"B at {level.level}": level.versus for level in primary if level.tested and not level.distinguishable}
    if unclear:
        sentences.append(indistinguishable(unclear, "A"))
    if untested := [f"`{level.level}`" for level in primary if not level.tested]:
        sentences.append(f"Not tested: {', '.join(untested)}.")
    if secondary := [other for other in differences if other.tested and other.metric != primary_metric]:
        distinct = sum(other.distinguishable for other in secondary)
        sentences.append(f"Of {len(secondary)} comparisons of other metrics, {distinct} differ after Holm.")
    return " ".join(sentences)


def _table_view(title: str, first: str, differences: Sequence[Difference]) -> dict[str, Any]:
    """Return a table with a row per metric of two runs, or per level of one metric of two studies.

    `first` is the heading of the first column.
    """
    # Most rows have the same counts, so only the exceptions state theirs.
    usual = usual_size(difference.versus.difference for difference in differences)
    rows = [(*cells(row, usual), metric_note(row.metric), row.distinguishable) for row in differences]
    return {"title": title, "first": first, "rows": rows}


def _test_notes(differences: Sequence[Difference]) -> list[str]:
    """Return the names of the tests without repetition, and the meaning of the last column."""
    names = dict.fromkeys(difference.versus.test for difference in differences if difference.tested)
    notes = [name[:1].upper() + name[1:] for name in names]
    gaps = [one.versus.difference for one in differences if one.tested]
    if len({(gap.n, gap.clusters) for gap in gaps}) > 1:
        notes.append(OWN_SIZE)
    return [*notes, DETECTABLE] if notes else []


def cells(difference: Difference, usual: tuple[int, int] | None = None) -> tuple[str, ...]:
    """Return a row as text: level or metric, then in the order of HEADINGS; an untested row has only two numbers.

    Args:
        usual: usual (pairs, clusters) of the table; a row with other counts states its own.
    """
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
    if usual:
        gap = with_own_size(gap, versus.difference, usual)
    return (heading, of_a, of_b, gap, p_text(versus.p_value), p_text(difference.p_holm), detectable)


def effect_dots(a: Side, differences: Sequence[Difference]) -> Chart | None:
    """Plot B − A of every metric in standard deviations of A's responses, so that all metrics fit on one axis."""
    levels = [Level("no difference", Estimate(0.0, -math.inf, math.inf, 0, 0), reference=True)]
    for difference in differences:
        if not difference.tested:
            continue
        scale = float(pd.to_numeric(a.responses[difference.metric], errors="coerce").std())
        if scale > 0 and math.isfinite(scale):
            gap = difference.versus.difference
            scaled = Estimate(gap.mean / scale, gap.low / scale, gap.high / scale, gap.n, gap.clusters)
            levels.append(Level(metric_title(difference.metric), scaled))
    if len(levels) == 1:  # only the reference is left
        return None
    title = "Differences in standard deviations of A's responses"
    return dot_chart(levels, title=title, x_label="B − A, standard deviations", width=520)


def level_dots(a: Study, b: Study, differences: Sequence[Difference]) -> Chart:
    """Plot one metric of both studies, level by level: means with intervals, and the jobs behind them."""
    levels = []
    for difference in differences:
        jobs = compared_jobs(a, b, difference.level)
        sides = (("A", difference.a, jobs.a), ("B", difference.b, jobs.b))
        for colour, (letter, estimate, of_side) in enumerate(sides):
            name, runs = f"{difference.level}, {letter}", of_side[difference.metric].tolist()
            levels.append(Level(name, estimate, runs, colour=colour, run_names=job_names(of_side), units="seeds"))
    title = judged_title(differences[0].metric, a.has_gold and b.has_gold)
    return dot_chart(levels, title=f"{title} of A and B by level", x_label=title)


def policy_frontier(a: Side, b: Side) -> Chart | None:
    """Plot the primary metric of every evaluated policy against √KL, with a line per training run."""
    scale_mismatches = mismatches(a.run, b.run)
    for metric in QUESTIONS:
        if any(mismatch.covers(metric) for mismatch in scale_mismatches):
            continue
        points = [_policy_points(side.run, metric) for side in (a, b)]
        if all(points):
            series = [Series(side.name, points[colour], colour) for colour, side in enumerate((a, b))]
            y_label = metric_title(metric)
            x_label = "√KL from each run's own reference, √nats per response"
            return frontier(series, title=f"{y_label} against √KL of every policy", x_label=x_label, y_label=y_label)
    return None


def _policy_points(run: StoredRun, metric: str) -> list[Point]:
    """Return a point per policy that has both KL and the metric, in order of KL."""
    points = []
    path = policies_on_path(run)
    for policy in run.policies:
        kl = policy.metrics.get("kl")
        value = policy.metrics.get(metric)
        if kl and value and not math.isnan(kl.mean + value.mean):
            root_kl = math.sqrt(max(kl.mean, 0.0))  # an estimate of a small KL may be negative
            tooltip = {
                "policy": policy.name,
                "KL": compact(kl),
                **estimate_tooltip(metric_title(metric), value),
                "seed": str(run.manifest.get("seed", "–")),
            }
            bounds, joined = (value.low, value.high), policy.name in path
            points.append(Point(root_kl, value.mean, *bounds, label=policy.name, tooltip=tooltip, joined=joined))
    return sorted(points, key=lambda point: point.x)


def costs(a: StoredRun, b: StoredRun) -> list[tuple[str, str, str, str]]:
    """Return (cost, A, B, B ÷ A): time, memory, steps and trained parameters."""
    rows = []
    for name in COSTS:
        known = [run.cost.get(name) or run.results.get(name) for run in (a, b)]
        if any(known):
            rows.append(_cost_row(metric_title(name), *(value.mean if value else math.nan for value in known)))
    return [*rows, _cost_row("last logged step", _last_step(a), _last_step(b))]


def _last_step(run: StoredRun) -> float:
    return float(run.metrics["step"].max()) if "step" in run.metrics else math.nan


def _cost_row(name: str, a: float, b: float) -> tuple[str, str, str, str]:
    return name, compact(a), compact(b), f"× {compact(b / a)}" if a and math.isfinite(b / a) else "–"


def _as_one_run(a: Side, b: Side, paired: bool) -> StoredRun:
    """Return both runs' responses to shared prompts, as if one run had evaluated two policies."""
    responses = pd.DataFrame()
    if paired:
        sides = [side.responses.assign(policy=side.name) for side in (a, b)]
        responses = pd.concat(sides, ignore_index=True)
    if len(responses):
        policies_per_prompt = responses.groupby(PROMPT)["policy"].transform("nunique")
        responses = responses[policies_per_prompt == 2]
    return dataclasses.replace(a.run, evaluation=responses, policies=())


def _run_metadata(side: Side) -> dict[str, Any]:
    run = side.run
    tooltip = [
        ("policy", side.policy or ""),
        ("seed", run.manifest.get("seed")),
        ("run", run.path),
        ("code", str(run.manifest.get("git_sha") or "")[:10]),
    ]
    facts = [(name, str(value)) for name, value in tooltip if value not in (None, "")]
    return {"name": side.name, "recipe": run.recipe, "status": run.status, "facts": facts}


def _study_metadata(letter: str, study: Study) -> dict[str, Any]:
    status = "completed" if not len(study.incomplete) else "partly completed"
    tooltip = [("compared", study.compare), ("baseline", study.baseline), ("study", str(study.path))]
    return {"name": letter, "recipe": study.recipe, "status": status, "facts": tooltip}


def distinguishable(side: str, versus: Comparison, p_holm: float) -> str:
    """Return a sentence that says whether a metric is higher or lower with one side, and by how much."""
    direction = "higher" if versus.difference.mean > 0 else "lower"
    return f"It is {direction} with {side} ({signed(versus.difference)}, {p_equals(p_holm)} after Holm)."


def indistinguishable(sides: Mapping[str, Comparison], other: str, *, unit: str = "seed") -> str:
    """Return the sides that cannot be told apart from the other one, and how many seeds would decide it.

    Args:
        sides: label of a side → its difference from the other one.
        unit: what both sides of a pair have in common: "seed" or "prompt".
    """
    # one pair has no standard deviation
    tested = {side: versus for side, versus in sides.items() if versus.difference.clusters > 1}
    sentences = []
    if tested:
        names = [f"{side} ({_detectable_clause(versus, unit)})" for side, versus in tested.items()]
        sentences.append(f"Not distinguishable from {other}: {list_in_words(names)}.")
    if untested := [side for side in sides if side not in tested]:
        sentences.append(
            f"Not tested against {other}: {list_in_words(untested)}. "
            f"One shared {unit} cannot tell a difference from noise between {unit}s: use three or more."
        )
    return " ".join(sentences)


def _detectable_clause(versus: Comparison, unit: str) -> str:
    """Return a clause with the observed difference and the minimum detectable one (80 % power).

    For pairs by seed, it also has the number of seeds that would detect the observed difference.
    """
    effect = versus.minimum_detectable_effect
    phrases = [signed(versus.difference)]
    if math.isfinite(effect) and effect > 0:
        phrases.append(f"detectable from {compact(effect)}")
    if unit == "seed" and (needed := repetitions_to_decide(versus)):
        phrases.append(f"about {needed} seeds would find it")
    return ", ".join(phrases)
