"""Sections of stages that evaluate a reward: its report card (`rm_report`), and reward-model benchmarks (`rm_bench`).

The report card is read from `reward_report.json`: reliability, accuracy and scores by length, distances, and the
numbers. A run without this file has no such section.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_lab.core.files import read_object
from rlhf_lab.core.metrics import titled
from rlhf_lab.figures.charts import Level, Point, Series, dot_chart, estimate_tooltip, frontier, spread
from rlhf_lab.figures.layers import Chart
from rlhf_lab.reports.sections import PageSection, ReportTable, figure_boxes
from rlhf_lab.results.glossary import term
from rlhf_lab.results.rundir import StoredRun
from rlhf_lab.results.wording import compact, metric_note, metric_title
from rlhf_lab.statistics.inference import Estimate

FILE = "reward_report.json"
"""File with the data of the figures."""
VERSIONS = {"raw": "as it is", "scaled": "after temperature scaling"}
"""Key of a calibration curve in the file → the name of the curve in the figure."""
SKIPPED = ("data/", "encoding/")
"""Prefixes of metrics that describe the data rather than the reward."""
NOTE = (
    "Held-out pairs as labelled, and responses of the policy. Mean with 95 % interval, clustered by prompt; responses "
    "without a score are left out and counted."
)
CONFIDENCE = (
    "On the dashed line confidence is right; below it the reward is overconfident. Bins contain about equal numbers of "
    "pairs; the temperature of each half of the prompts was fitted on the other."
)
LENGTH = (
    "A line that rises to the right means a length bias: the reward is right if the longer response was chosen, and "
    "wrong if the shorter one was."
)
SCORES = "Responses of the policy. Line: 5 to 95 %. Bar: 25 to 75 %. Tick: median."
DISTANCES = (
    "STARC distance within prompts, over responses of the policy: 0 means the same order of responses, 0.71 unrelated, "
    "1 opposite."
)


def has_report_card(run: StoredRun) -> bool:
    return (run.path / FILE).is_file()


def report_card(run: StoredRun) -> PageSection | None:
    """Return the section with numbers and figures of a report card; None for a run that has none."""
    if not has_report_card(run):
        return None
    card = read_object(run.path / FILE)
    confidence = reliability(card.get("reliability") or {})
    by_length = accuracy_by_length(card.get("accuracy_by_length") or [])
    accuracy = figure_boxes(
        ("Is its confidence calibrated?", CONFIDENCE, confidence),
        ("Does accuracy depend on length?", LENGTH, by_length),
    )
    scores = figure_boxes(("Scores by length", SCORES, scores_by_length(card.get("score_by_length") or [])))
    if distances := distance_table(card.get("distances") or {}):
        scores.append(PageSection("Distance between rewards", DISTANCES, table=distances))
    headings = ("measure", "value", term("n / prompts", "scored rows / prompts"), "meaning")
    return PageSection(
        "Report card of the reward",
        NOTE,
        table=ReportTable(headings, number_table(run.results), "left fold"),
        template=f"{__package__}:card.html.j2",
        values={"rows": [accuracy, scores]},
        files={"plot": confidence} if confidence else {},
    )


def benchmark(run: StoredRun) -> PageSection | None:
    """Return the section with scores of a benchmark's subsets; None for a run that scored none."""
    figure = benchmark_dots(run)
    note = "Each subset by the benchmark's own rule, with 95 % interval."
    return PageSection("Benchmark", note, [figure]) if figure else None


def benchmark_dots(run: StoredRun) -> Chart | None:
    """Plot the score of every subset of a benchmark; None for a run that scored none."""
    if "items" not in run.results:
        return None
    scored = {name: value for name, value in run.results.items() if value.n}
    if not scored:
        return None
    levels = [Level(metric_title(name), value) for name, value in scored.items()]
    return dot_chart(levels, title="Scores by the benchmark's own rule", x_label="score")


def reliability(versions: Mapping[str, Sequence[Mapping[str, Any]]]) -> Chart | None:
    """Plot the accuracy of each bin against its confidence, with intervals; the dashed diagonal is calibrated."""
    series = []
    for colour, (name, title) in enumerate(VERSIONS.items()):
        if versions.get(name):
            bins = [_read_point(row, "confidence", "accuracy") for row in versions[name] if row.get("mean") is not None]
            series.append(Series(title, bins, colour))
    if not any(version.points for version in series):
        return None
    descriptions = []
    # The description repeats the figure's numbers for screen readers.
    for version in series:
        numbers = ", ".join(f"{point.x:.2f} → {point.y:.2f}" for point in version.points)
        descriptions.append(f"{version.name}: {numbers}")
    return frontier(
        series,
        title="Reliability: accuracy against confidence",
        x_label="confidence σ(|Δ|), mean of each bin",
        y_label="accuracy: fraction of pairs ordered as labelled",
        diagonal=(0.5, 1.0),
        description=f"confidence → accuracy; {'; '.join(descriptions)}",
    )


def accuracy_by_length(rows: Sequence[Mapping[str, Any]]) -> Chart | None:
    """Plot accuracy by length difference, from pairs with a much shorter chosen response to much longer ones."""
    points = [_read_point(row, "words", "accuracy") for row in rows if row.get("mean") is not None]
    if not points:
        return None
    label = "words of the chosen response − words of the rejected one, mean of each group"
    return frontier(
        [Series("accuracy", points, 0)], title="Accuracy by difference in length", x_label=label, y_label="accuracy"
    )


def scores_by_length(rows: Sequence[Mapping[str, Any]]) -> Chart | None:
    """Plot quantiles of the scores of policy responses, in groups of similar length."""
    quantiles_by_length = {}
    for row in rows:
        shortest, max_length = row["words"][0], row["words"][1]
        quantiles_by_length[f"{shortest:.0f}–{max_length:.0f} words"] = row["five"]
    if not quantiles_by_length:
        return None
    return spread(
        quantiles_by_length,
        title="Score of policy responses by length",
        x_label="score of a response, in units of the reward",
    )


def distance_table(distances: Mapping[str, Any]) -> ReportTable | None:
    """Return STARC distances as a triangle: a row per reward, a column per reward before it."""
    names = list(distances.get("names") or [])
    if len(names) < 2:
        return None
    distance_of_pair = {frozenset(row["between"]): compact(Estimate.from_dict(row)) for row in distances["pairs"]}
    column_names = names[:-1]
    rows = []
    for row_number, name in enumerate(names[1:], start=1):
        cells = []
        for column_number, column_name in enumerate(column_names):
            below_diagonal = row_number > column_number
            pair = frozenset((name, column_name))
            cells.append(distance_of_pair.get(pair, "–") if below_diagonal else "")
        rows.append((name, *cells))
    return ReportTable(("", *column_names), rows)


def number_table(results: Mapping[str, Estimate]) -> list[tuple[str, str, str, str]]:
    """Return (metric, value, n / prompts, meaning) of each number, those with a title first."""
    shown = [name for name in titled() if name in results]
    shown += sorted(name for name in results if name not in titled() and not name.startswith(SKIPPED))
    rows = []
    for name in shown:
        value = results[name]
        size = f"{value.n} / {value.clusters}" if value.n else "–"
        rows.append((_number_title(name), compact(value), size, _number_note(name)))
    return rows


def _number_title(name: str) -> str:
    """Return a metric's title; a metric over pairs, or of one node of the reward, is named after its base metric."""
    reward_part = name.removeprefix("starc/gold/")
    if reward_part != name:
        return f"{metric_title('starc/gold')}: {reward_part}"
    base, _, version = name.rpartition("/")
    if name not in titled() and base in titled():
        return f"{metric_title(base)}, {version}"
    return metric_title(name)


def _number_note(name: str) -> str:
    """Return the meaning of a metric, or of its base metric."""
    base, _, version = name.rpartition("/")
    version_notes = {"pairs": "the same over the responses of held-out pairs", "gold": "the same for gold"}
    return metric_note(name) or (version_notes.get(version, "") if base in titled() else "")


def _read_point(row: Mapping[str, Any], x_field: str, y_name: str) -> Point:
    estimate = Estimate.from_dict(row)
    x = float(row[x_field])
    tooltip = {x_field: compact(x), **estimate_tooltip(y_name, estimate)}
    return Point(x, estimate.mean, estimate.low, estimate.high, tooltip=tooltip)
