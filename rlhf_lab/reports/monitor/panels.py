"""Sections on the warning lights, the reward-hacking monitor and audited training in the report of a run.

The panels of the monitor show length with the band in which `length_z` raises no alarm, the distribution of the reward,
and gold against proxy reward. Each marks the first alarms of both levels. All statistics are recomputed from
monitor.jsonl.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlhf_lab.core.files import read_jsonl
from rlhf_lab.core.metrics import names
from rlhf_lab.core.types import FloatArray
from rlhf_lab.figures.charts import Point, Series, curves
from rlhf_lab.figures.layers import Chart, EventMark
from rlhf_lab.figures.palette import GREY
from rlhf_lab.monitoring.metrics import AUDIT_OF_A_RUN, DETECTOR, MONITOR_OF_A_RUN
from rlhf_lab.monitoring.replay import Replay, replay, rule_rows, summary
from rlhf_lab.monitoring.settings import AUDIT_TRACE, TRACE
from rlhf_lab.reports.sections import PageSection, ReportTable
from rlhf_lab.results.gains import five_numbers
from rlhf_lab.results.gains import lights as lights_of
from rlhf_lab.results.glossary import term
from rlhf_lab.results.rundir import StoredRun
from rlhf_lab.results.wording import compact

POINTS = 40
"""Maximum number of points of a curve, which limits the size of the page."""
WORDS = {"warning": "warning", "hard_stop": "strong warning", "gold_fell_at": "gold fell"}
"""Event → word on its vertical line."""
# Prefixes of metric names (before the first "/") that belong to the monitor or to the audit.
SECTION_METRICS = {name.partition("/")[0] for name in names((*DETECTOR, *MONITOR_OF_A_RUN, *AUDIT_OF_A_RUN))}


def in_monitor_section(metric: str) -> bool:
    """Return True if a metric of the run is shown in the section of the monitor or of the audit."""
    return metric.partition("/")[0] in SECTION_METRICS


def monitor(run: StoredRun) -> PageSection | None:
    """Return the section with panels, table and notes; None for a run without a monitor."""
    if not (run.path / TRACE).is_file():
        return None
    # The stored samples are judged again; see the module docstring.
    replayed = replay(run.path)
    columns, rows = rule_rows(replayed)
    panels = [lengths(replayed), rewards(replayed), gold_and_proxy(replayed)]
    notes = [
        f"{metric.meaning}: {_format_run_number(metric.name, run.results[metric.name].mean)}"
        for metric in MONITOR_OF_A_RUN
        if metric.name in run.results
    ]
    values = {
        "panels": [panel for panel in panels if panel],
        "headings": [term(name) for name in columns],
        "rows": rows,
        "words": summary(replayed).split("\n"),
        "remarks": notes,
    }
    return PageSection("What the monitor saw", template=f"{__package__}:panels.html.j2", values=values)


def lengths(monitor: Replay) -> Chart | None:
    """Plot the mean length of a response, or of an agent's turns, and the band in which `length_z` is silent."""
    band = monitor.detector.band()
    iterations = len(monitor.batches)
    name = "mean length of a turn" if monitor.detector.by_turn else "mean response length"
    lines = [_curve(name, _means(monitor, "length_N"), 0)]
    if band:
        middle, low, high = (np.full(iterations, value) for value in (sum(band) / 2, *band))
        lines.append(_curve("warm-up", middle, GREY, low, high))
    return _panel(lines, "Response length", "tokens", _alarms(monitor))


def rewards(monitor: Replay) -> Chart | None:
    """Plot quantiles of the reward over responses."""
    quantiles = np.array([five_numbers(batch.reward_N) or [np.nan] * 5 for batch in monitor.batches]).T
    if not np.isfinite(quantiles).any():
        return None
    p5, p25, median, p75, p95 = quantiles
    # A curve of NaN shows only its band.
    no_line = np.full(len(median), np.nan)
    lines = [_curve("median, middle half", median, 0, p25, p75), _curve("5 to 95 %", no_line, 5, p5, p95)]
    return _panel(lines, "Distribution of the reward", "reward", _alarms(monitor))


def gold_and_proxy(monitor: Replay) -> Chart | None:
    """Plot gold and proxy reward; None if gold is unknown."""
    gold = _means(monitor, "gold_N")
    if not np.isfinite(gold).any():
        return None
    proxy = _means(monitor, "reward_N")
    lines = [_curve("gold", gold, 1), _curve("proxy", proxy, 0)]
    return _panel(lines, "Gold and proxy reward of the samples", "reward", _alarms(monitor))


def _panel(lines: Sequence[Series], title: str, y_label: str, events: Sequence[EventMark]) -> Chart:
    """Plot curves over iterations."""
    size = (420, 170)
    return curves(lines, title=title, x_label="iteration", y_label=y_label, size=size, legend=True, events=events)


def _curve(
    name: str, values: FloatArray, colour: int, low: FloatArray | None = None, high: FloatArray | None = None
) -> Series:
    """Return a curve over iterations, which count from 1, as means of up to POINTS bins; NaN is not drawn."""
    no_band = np.full(len(values), np.nan)
    columns = [values, no_band if low is None else low, no_band if high is None else high]
    points = []
    for indices in np.array_split(np.arange(len(values)), min(POINTS, len(values))):
        iteration = float(indices.mean()) + 1
        value, low_of_bin, high_of_bin = (_finite_mean(column[indices]) for column in columns)
        tooltip = {"iteration": compact(iteration), "mean": compact(value)}
        if math.isfinite(low_of_bin) and math.isfinite(high_of_bin):
            tooltip["band"] = f"{compact(low_of_bin)} to {compact(high_of_bin)}"
        points.append(Point(iteration, value, low_of_bin, high_of_bin, tooltip=tooltip))
    return Series(name, points, colour)


def _alarms(monitor: Replay) -> list[EventMark]:
    """Return marks for the first warning, the first strong warning, and the fall of gold.

    Gold falls on held-out prompts; if it was not measured there, it falls in the training samples, from their best
    value.
    """
    iterations = {**monitor.detector.first, **monitor.totals()}
    return [
        EventMark(iterations[name] + 1, word)
        for name, word in WORDS.items()
        if math.isfinite(iterations.get(name, math.nan))
    ]


def _format_run_number(name: str, value: float) -> str:
    """Return a run-level number as text; iterations are stored from 0 but displayed from 1."""
    return f"{value + 1:.0f}" if name == "stopped_at" else compact(value)


def _means(monitor: Replay, column: str) -> FloatArray:
    """Return the mean of a column of every iteration."""
    return np.array([_finite_mean(getattr(batch, column)) for batch in monitor.batches])


def _finite_mean(values_N: FloatArray) -> float:
    """Return the mean of the finite values; NaN without any."""
    finite_N = values_N[np.isfinite(values_N)]
    return float(finite_N.mean()) if len(finite_N) else math.nan


LIGHTS_NOTE = (
    "Responses to held-out prompts, the last policy against the first, paired by prompt; p after Holm over these "
    "lights. Red is observed harm: gold fell, or responses are padded or degenerate (garbled). Yellow is a symptom."
)


def lights(run: StoredRun) -> PageSection | None:
    """Return the section of the warning lights; None if the run has fewer than two policies."""
    shown = lights_of(run)
    if not shown:
        return None
    template = f"{__package__}:lights.html.j2"
    return PageSection("Signs of reward hacking", LIGHTS_NOTE, template=template, values={"lights": shown})


SHOWN_LOST = 8
"""Number of lost comparisons in the table."""
Row = Mapping[str, Any]
"""Row of audit.jsonl."""


def audited(run: StoredRun) -> PageSection | None:
    """Return the section of the audit; None for a run without an audit."""
    rows = read_jsonl(run.path / AUDIT_TRACE)
    if not rows:
        return None
    settings = run.settings["reward"]["audit"]
    alpha, delta = settings["alpha"], settings["delta"]
    alarm = next((row["iteration"] for row in rows if row["largest"] >= 1 / alpha), None)
    events = [] if alarm is None else [EventMark(alarm, "alarm")]
    note = (
        f"{_verdict(rows, alarm, alpha)} Responses are compared with new responses of the start policy to the same "
        f"prompts, by {settings['labels_from']}. If the policy were never worse than its start, at most {alpha:.0%} of "
        f"runs would raise an alarm. A policy is certified while the lower bound is at least {0.5 - delta:g}. "
        f"All comparisons: `{AUDIT_TRACE}`."
    )
    headings = ("after iteration", "prompt", "start response, which won", "response of the policy")
    lost = lost_comparisons(rows)
    return PageSection(
        "Audit against the start policy",
        note,
        figures=[evidence(rows, alpha, events), win_rates(rows, delta, events)],
        table=ReportTable(headings, lost, "left fold") if lost else None,
    )


def _verdict(rows: Sequence[Row], alarm: int | None, alpha: float) -> str:
    last = rows[-1]
    bought = f"{last['labels']:.0f} comparisons, {last['unanswered']:.0f} of them unanswered"
    if alarm is None:
        return f"No alarm: the largest e-value was {last['largest']:.3g}, below {1 / alpha:.3g} ({bought})."
    return f"Alarm after {alarm} iterations: the e-value reached {1 / alpha:.3g} ({bought})."


def evidence(rows: Sequence[Row], alpha: float, events: Sequence[EventMark]) -> Chart:
    """Plot the e-value over iterations on a logarithmic scale, with the threshold of an alarm."""
    points = []
    for row in rows:
        tooltip = {"after iteration": str(row["iteration"]), "e-value": compact(row["e_value"])}
        points.append(Point(row["iteration"], math.log10(row["e_value"]), tooltip=tooltip))
    lines = [Series("evidence that the policy is worse", points), _horizontal("alarm", rows, math.log10(1 / alpha))]
    return _panel(lines, "Evidence against the policy", "log10 of the e-value", events)


def win_rates(rows: Sequence[Row], delta: float, events: Sequence[EventMark]) -> Chart:
    """Plot wins against the start policy with their lower bound, and the level down to which a policy is certified."""
    points = []
    for row in rows:
        if row["win_rate"] is None:  # no comparison was answered
            continue
        tooltip = {
            "after iteration": str(row["iteration"]),
            "wins, ties half": compact(row["win_rate"]),
            "lower bound": compact(row["lower_bound"]),
        }
        points.append(Point(row["iteration"], row["win_rate"], row["lower_bound"], row["win_rate"], tooltip=tooltip))
    lines = [Series("wins, ties half, down to the lower bound", points), _horizontal("certified", rows, 0.5 - delta)]
    return _panel(lines, "Wins against the start policy", "fraction", events)


def _horizontal(name: str, rows: Sequence[Row], value: float) -> Series:
    ends = (rows[0]["iteration"], rows[-1]["iteration"])
    return Series(name, [Point(x, value) for x in ends], GREY)


def lost_comparisons(rows: Sequence[Row]) -> list[tuple[str, str, str, str]]:
    """Return the last comparisons that the policy lost, the latest first, as rows of text."""
    lost = [
        (str(row["iteration"]), comparison["prompt"].strip(), comparison["start"], comparison["response"])
        for row in reversed(rows)
        for comparison in row["comparisons"]
        if comparison["score"] == 0
    ]
    return lost[:SHOWN_LOST]
