"""Section on audited training in the report of a run: evidence against the policy, win rate, lost comparisons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_lab.core.files import read_jsonl
from rlhf_lab.figures.charts import Point, Series, curves
from rlhf_lab.figures.layers import Chart, EventMark
from rlhf_lab.figures.palette import GREY
from rlhf_lab.monitoring.settings import AUDIT_TRACE
from rlhf_lab.reports.sections import PageSection, ReportTable
from rlhf_lab.results.rundir import StoredRun
from rlhf_lab.results.wording import compact

SHOWN = 8
"""Number of lost comparisons in the table."""
SIZE = (420, 170)
"""Width of a figure and height of its plot, px."""
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
    lines = [Series("evidence that the policy is worse", points), _level("alarm", rows, math.log10(1 / alpha))]
    return _chart(lines, "Evidence against the policy", "log10 of the e-value", events)


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
    lines = [Series("wins, ties half, down to the lower bound", points), _level("certified", rows, 0.5 - delta)]
    return _chart(lines, "Wins against the start policy", "fraction", events)


def _level(name: str, rows: Sequence[Row], value: float) -> Series:
    ends = (rows[0]["iteration"], rows[-1]["iteration"])
    return Series(name, [Point(x, value) for x in ends], GREY)


def _chart(lines: Sequence[Series], title: str, y_label: str, events: Sequence[EventMark]) -> Chart:
    return curves(lines, title=title, x_label="iteration", y_label=y_label, size=SIZE, legend=True, events=events)


def lost_comparisons(rows: Sequence[Row]) -> list[tuple[str, str, str, str]]:
    """Return the last comparisons that the policy lost, the latest first, as rows of text."""
    lost = [
        (str(row["iteration"]), comparison["prompt"].strip(), comparison["start"], comparison["response"])
        for row in reversed(rows)
        for comparison in row["comparisons"]
        if comparison["score"] == 0
    ]
    return lost[:SHOWN]
