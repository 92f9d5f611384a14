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
from rlhf_lab.reports.comparison.notes import run_notes
from rlhf_lab.reports.comparison.scales import ABSENT, mismatches, origin_changes, setting_changes
from rlhf_lab.reports.run.samples import samples_section
from rlhf_lab.reports.run.training import overlaid_curves
from rlhf_lab.reports.sections import PageSection, ReportPage, ReportTable, figure_boxes
from rlhf_lab.results.gains import PROMPT, policies_on_path
from rlhf_lab.results.rundir import StoredRun
from rlhf_lab.results.samples import pick_samples
from rlhf_lab.results.wording import (
    compact,
    metric_note,
    metric_title,
    p_equals,
    p_text,
    signed,
    usual_size,
    with_own_size,
)
from rlhf_lab.statistics.inference import Comparison, Estimate

QUESTIONS = ("gold", "correct", "proxy")
"""Metrics that the conclusion may be about, in order of preference; the first one that both runs have is used."""
HEADINGS = ("metric", "A", "B", "B − A", "p", "p (Holm)", "detectable")
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


def run_comparison(a: Side, b: Side) -> dict[str, Any]:
    """Return all values of the page."""
    differences = run_differences(a, b)
    # Metrics on different scales are listed, but not tested.
    tested = [difference for difference in differences if difference.tested]
    changes = setting_changes(a.run, b.run)
    stored = stored_numbers(a, b, [difference.metric for difference in differences])
    # Most rows have the same counts, so only the exceptions state theirs.
    usual = usual_size(difference.versus.difference for difference in differences)
    both_runs = _as_one_run(a, b, bool(differences))
    samples = pick_samples(both_runs, budget=SAMPLE_BYTES)
    # The keys are read by compare.html.j2 and by `report.printed`.
    return {
        "clustered_by": cluster_unit(a, b).name,
        "title": f"{a.name} against {b.name}",
        "sides": [_run_metadata(side) for side in (a, b)],
        "finding": run_conclusion(a, b, tested) if tested else stored_conclusion(a, b, stored),
        "remarks": run_notes(a, b),
        "rows": [(*cells(row, usual), metric_note(row.metric), row.distinguishable) for row in differences],
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


def comparison_page(view: Mapping[str, Any]) -> ReportPage:
    """Return the page of `run_comparison`."""
    sections = {
        "comparison": PageSection(template=f"{__package__}:compare.html.j2", values={**view, "headings": HEADINGS})
    }
    if view["samples"]:
        sections["samples"] = view["samples"]
    if view["costs"]:
        sections["costs"] = PageSection(
            "Cost", table=ReportTable(("of the stage itself", "A", "B", "B ÷ A"), view["costs"])
        )
    footer = "Every number is measured in these two runs. Written by `python -m rlhf_lab compare`."
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
        sentences.append(indistinguishable(f"`{b.name}`", f"`{a.name}`", primary.versus, unit.noun))
    if secondary := [other for other in differences if other is not primary]:
        distinct = [other for other in secondary if other.distinguishable]
        changes = [f"{metric_title(other.metric)} {signed(other.versus.difference)}" for other in distinct]
        listed = ", ".join(changes) or "none"
        sentences.append(f"Of the {len(secondary)} other metrics, these differ (B − A): {listed}.")
    return " ".join(sentences)


def _test_notes(differences: Sequence[Difference]) -> list[str]:
    """Return the names of the tests without repetition, and the meaning of the last column."""
    names = dict.fromkeys(difference.versus.test for difference in differences if difference.tested)
    notes = [name[:1].upper() + name[1:] for name in names]
    gaps = [one.versus.difference for one in differences if one.tested]
    if len({(gap.n, gap.clusters) for gap in gaps}) > 1:
        notes.append(OWN_SIZE)
    return [*notes, DETECTABLE] if notes else []


def cells(difference: Difference, usual: tuple[int, int] | None = None) -> tuple[str, ...]:
    """Return a row as text: the metric, then in the order of HEADINGS; an untested row has only two numbers.

    Args:
        usual: usual (pairs, clusters) of the table; a row with other counts states its own.
    """
    title = metric_title(difference.metric)
    of_a, of_b = compact(difference.a), compact(difference.b)
    if not difference.tested:
        return (title, of_a, of_b, *["–"] * 4)
    versus = difference.versus
    effect = versus.minimum_detectable_effect
    detectable = compact(effect) if effect else "–"
    if math.isinf(effect):
        detectable = "nothing"
    gap = signed(versus.difference)
    if usual:
        gap = with_own_size(gap, versus.difference, usual)
    return (title, of_a, of_b, gap, p_text(versus.p_value), p_text(difference.p_holm), detectable)


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


def distinguishable(side: str, versus: Comparison, p_holm: float) -> str:
    """Return a sentence that says whether a metric is higher or lower with one side, and by how much."""
    direction = "higher" if versus.difference.mean > 0 else "lower"
    return f"It is {direction} with {side} ({signed(versus.difference)}, {p_equals(p_holm)} after Holm)."


def indistinguishable(side: str, other: str, versus: Comparison, unit: str) -> str:
    """Return a sentence on two sides that cannot be told apart, with the minimum detectable difference (80 % power).

    `unit` is what both sides of a pair have in common, such as "prompt".
    """
    if versus.difference.clusters < 2:  # one pair has no standard deviation
        return (
            f"Not tested against {other}: {side}. "
            f"One shared {unit} cannot tell a difference from noise between {unit}s: use three or more."
        )
    effect = versus.minimum_detectable_effect
    detectable = f", detectable from {compact(effect)}" if math.isfinite(effect) and effect > 0 else ""
    return f"Not distinguishable from {other}: {side} ({signed(versus.difference)}{detectable})."
