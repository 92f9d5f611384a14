"""Panels of stages that judge a reward: its report card (`rm_report`), and benchmarks of reward models (`rm_bench`).

The report card reads `reward_report.json`: reliability, accuracy and scores by length, distances, and the numbers. A
run without it has no such panel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_lab.core.metrics import titled
from rlhf_lab.figures.charts import Level, Point, Series, dots, frontier, spread
from rlhf_lab.figures.svg import GREY, Canvas, dash, span
from rlhf_lab.results.rundir import Run, read_json
from rlhf_lab.results.wording import compact, metric_note, metric_title
from rlhf_lab.statistics.inference import Estimate

FILE = "reward_report.json"
VERSIONS = {"raw": "as it is", "scaled": "after temperature scaling"}
SKIPPED = ("data/", "encoding/")
UNRELATED = "0 orders replies alike, .71 is unrelated, 1 is opposite"


def reward_view(run: Run) -> dict[str, Any] | None:
    """What the panel shows; None for a run that left no report card."""
    if not (run.path / FILE).is_file():
        return None
    found = read_json(run.path / FILE, [])
    return {
        "reliability": reliability(found.get("reliability") or {}),
        "by_length": accuracy_by_length(found.get("accuracy_by_length") or []),
        "scores": scores_by_length(found.get("score_by_length") or []),
        "distances": distance_table(found.get("distances") or {}),
        "numbers": number_table(run.results),
        "note": UNRELATED,
    }


def benchmark_dots(run: Run) -> str | None:
    """Score of every subset of a benchmark; None for a run that scored none."""
    if "items" not in run.results:
        return None
    levels = [Level(metric_title(name), value) for name, value in run.results.items() if value.n]
    return dots(levels, title="Scores by the benchmark's own rule", x_label="score") if levels else None


def reliability_plot(run: Run) -> str | None:
    """The reliability diagram as a file of its own."""
    found = read_json(run.path / FILE, []) if (run.path / FILE).is_file() else {}
    return reliability(found.get("reliability") or {}, standalone=True)


def reliability(versions: Mapping[str, Sequence[Mapping[str, Any]]], *, standalone: bool = False) -> str | None:
    """Accuracy of each bin against its confidence, with intervals; on the dashed diagonal confidence is right."""
    series = [
        Series(VERSIONS[name], [_point(row, "confidence") for row in versions[name] if row.get("mean") is not None], k)
        for k, name in enumerate(VERSIONS)
        if versions.get(name)
    ]
    points = [point for one in series for point in one.points]
    if not points:
        return None
    across = span([p.x for p in points], include=[0.5, 1.0], pad=0.02)
    words = "; ".join(f"{one.name}: " + ", ".join(f"{p.x:.2f} → {p.y:.2f}" for p in one.points) for one in series)
    canvas = Canvas(
        *(520, 330),
        across,
        span([v for p in points for v in (p.y, p.low, p.high)], include=[0.5, 1.0]),
        "Reliability: accuracy against confidence",
        f"confidence → accuracy; {words}",
        top=28,
        left=56,
        right=24,
    )
    canvas.y_axis("accuracy: share of pairs ordered as labelled")
    canvas.x_axis("confidence σ(|Δ|), mean of each bin")
    canvas.line([(0.5, 0.5), (1.0, 1.0)], GREY, dash=dash(1), width=1.4)
    for one in series:
        canvas.line([(p.x, p.y) for p in one.points], one.colour, dash=dash(one.colour), width=1.4)
        for p in one.points:
            canvas.whisker((p.x, p.x), (p.low, p.high), one.colour)
            canvas.marker(p.x, p.y, one.colour)
    canvas.legend([(one.name, one.colour) for one in series])
    return canvas.render(standalone=standalone)


def accuracy_by_length(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Accuracy from pairs whose chosen reply is much shorter to those whose chosen reply is much longer."""
    points = [_point(row, "words") for row in rows if row.get("mean") is not None]
    if not points:
        return None
    label = "words of the chosen reply − words of the rejected one, mean of each group"
    return frontier(
        [Series("accuracy", points, 0)], title="Accuracy by difference in length", x_label=label, y_label="accuracy"
    )


def scores_by_length(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """How scores of policy replies scatter, in groups of about equal length."""
    named = {f"{row['words'][0]:.0f}–{row['words'][1]:.0f} words": row["five"] for row in rows}
    if not named:
        return None
    return spread(named, title="Score of policy replies by length", x_label="score of a reply, in units of the reward")


def distance_table(found: Mapping[str, Any]) -> dict[str, Any] | None:
    """STARC distances as a triangle: a row per reward, a column per reward before it."""
    names = list(found.get("names") or [])
    if len(names) < 2:
        return None
    cells = {frozenset(row["between"]): compact(Estimate.from_dict(row)) for row in found["pairs"]}
    rows = [
        (name, [cells.get(frozenset((name, other)), "–") if place > k else "" for k, other in enumerate(names[:-1])])
        for place, name in enumerate(names)
    ][1:]
    return {"names": names[:-1], "rows": rows}


def number_table(results: Mapping[str, Estimate]) -> list[tuple[str, str, str, str]]:
    """(metric, value, n / prompts, what it means), those with a title first."""
    shown = [name for name in titled() if name in results]
    shown += sorted(name for name in results if name not in titled() and not name.startswith(SKIPPED))
    sizes = {name: f"{results[name].n} / {results[name].clusters}" if results[name].n else "–" for name in shown}
    return [(_title(name), compact(results[name]), sizes[name], _note(name)) for name in shown]


def _title(name: str) -> str:
    """A metric's title; one on pairs, or of a part of the graph, is named after what it is a version of."""
    base, _, version = name.rpartition("/")
    part = name.removeprefix("starc/gold/")
    if part != name:
        return f"{metric_title('starc/gold')}: {part}"
    return f"{metric_title(base)}, {version}" if name not in titled() and base in titled() else metric_title(name)


def _note(name: str) -> str:
    base, _, version = name.rpartition("/")
    about = {"pairs": "the same over the replies of held-out pairs", "gold": "the same for the true reward"}
    return metric_note(name) or (about.get(version, "") if base in titled() else "")


def _point(row: Mapping[str, Any], across: str) -> Point:
    estimate = Estimate.from_dict(row)
    return Point(float(row[across]), estimate.mean, estimate.low, estimate.high)
