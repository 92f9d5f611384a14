"""Sections of stages that evaluate a reward: report card (`rm_report`), benchmarks, criteria, probes, attacks.

The report card is read from `reward_report.json`: reliability, accuracy and scores by length, and the numbers. A run
without this file has no such section.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_lab.core.files import read_jsonl, read_object
from rlhf_lab.core.metrics import titled
from rlhf_lab.figures.charts import Level, Point, Series, dot_chart, estimate_tooltip, frontier, spread
from rlhf_lab.figures.layers import Chart
from rlhf_lab.reports.sections import PageSection, ReportTable, figure_boxes
from rlhf_lab.results.glossary import term
from rlhf_lab.results.rundir import StoredRun
from rlhf_lab.results.wording import compact, metric_note, metric_title
from rlhf_lab.statistics.estimates import largest_first
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
    levels = [Level(metric_title(name), value) for name, value in run.results.items() if value.n]
    if "items" not in run.results or not levels:
        return None
    figure = dot_chart(levels, title="Scores by the benchmark's own rule", x_label="score")
    return PageSection("Benchmark", "Each subset by the benchmark's own rule, with 95 % interval.", [figure])


def reliability(versions: Mapping[str, Sequence[Mapping[str, Any]]]) -> Chart | None:
    """Plot the accuracy of each bin against its confidence, with intervals; the dashed diagonal is calibrated."""
    series = []
    for colour, (name, title) in enumerate(VERSIONS.items()):
        if versions.get(name):
            bins = [_read_point(row, "confidence", "accuracy") for row in versions[name] if row.get("mean") is not None]
            series.append(Series(title, bins, colour))
    if not any(version.points for version in series):
        return None
    # The description repeats the figure's numbers for screen readers.
    descriptions = [
        f"{version.name}: {', '.join(f'{point.x:.2f} → {point.y:.2f}' for point in version.points)}"
        for version in series
    ]
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
    quantiles_by_length = {f"{row['words'][0]:.0f}–{row['words'][1]:.0f} words": row["five"] for row in rows}
    if not quantiles_by_length:
        return None
    return spread(
        quantiles_by_length,
        title="Score of policy responses by length",
        x_label="score of a response, in units of the reward",
    )


def number_table(results: Mapping[str, Estimate]) -> list[tuple[str, str, str, str]]:
    """Return (metric, value, n / prompts, meaning) of each number, those with a title first, in the order of titles."""
    shown = [name for name in titled() if name in results]
    shown += sorted(name for name in results if name not in titled() and not name.startswith(SKIPPED))
    rows = []
    for name in shown:
        value = results[name]
        size = f"{value.n} / {value.clusters}" if value.n else "–"
        rows.append((_number_title(name), compact(value), size, _number_note(name)))
    return rows


def _number_title(name: str) -> str:
    """Return a metric's title; a metric over pairs is named after its base metric."""
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


# (prefix of the metrics, title of the figure, title of its axis)
CRITERIA = (
    ("agreement/", "Criteria against labels, validation pairs", "Spearman's ρ"),
    ("weight/", "Weights of standardised criteria", "weight"),
)


def criteria(run: StoredRun) -> PageSection | None:
    """Return the section with figures of criteria; None for a run without criteria."""
    return parts_section(run, CRITERIA)


def parts_section(run: StoredRun, figures: Sequence[tuple[str, str, str]]) -> PageSection | None:
    """Return a section with the figures for which the run has numbers; None if there are none.

    Args:
        figures: (prefix of the figure's metrics, title, title of the axis).
    """
    charts = []
    for prefix, title, axis in figures:
        numbers = {name.removeprefix(prefix): value for name, value in run.results.items() if name.startswith(prefix)}
        if levels := [Level(part.replace("_", " "), value) for part, value in numbers.items()]:
            charts.append(dot_chart(levels, title=title, x_label=axis))
    if not charts:
        return None
    return PageSection("Components of the reward", "With 95 % interval if there is one.", charts)


PROBE_NOTE = (
    "Read from the reward model: correlation of an attribute with its prediction by a linear probe of the last hidden "
    "state, on prompts that the probe was not fitted on. Read before: the same for the policy that the reward model "
    "was trained from. Effect on the score: change of the score per standard deviation of the attribute among "
    "responses to one prompt, in standard deviations of the score, at equal gold if gold is known. An attribute that "
    "is represented need not have an effect. 95 % intervals, clustered by prompt."
)
PROBE_COLUMNS = {
    "probe/": "read from the reward model",
    "probe_before/": "read before",
    "effect/": "effect on the score",
}


def probes(run: StoredRun) -> PageSection | None:
    """Return the table of attributes, the largest effect first after gold; None for a run without probes."""
    first = next(iter(PROBE_COLUMNS))
    attributes = [name.removeprefix(first) for name in run.results if name.startswith(first)]
    if not attributes:
        return None

    def rank(attribute: str) -> tuple[bool, float]:
        effect = run.results.get(f"effect/{attribute}")
        return attribute != "gold", -abs(effect.mean) if effect else 0.0

    rows = []
    for attribute in sorted(attributes, key=rank):
        estimates = [run.results.get(f"{prefix}{attribute}") for prefix in PROBE_COLUMNS]
        rows.append((attribute.replace("_", " "), *(compact(each) if each else "" for each in estimates)))
    table = ReportTable(("attribute", *PROBE_COLUMNS.values()), rows, "left fold")
    return PageSection("What the reward model represents, and what its score pays for", PROBE_NOTE, table=table)


GAIN_PREFIXES = {"reward": ("exploit_gain/", "trained_gain/"), "gold": ("exploit_gold/", "trained_gold/")}
"""Kind of gain → prefixes of its metrics; the second one is that of policies trained on the reward."""
SEARCH_GAINS = {"reward": "attack_gain", "gold": "attack_gold"}
COLUMN_OF_GAIN = {"reward": "gain", "gold": "gold"}
"""Kind of gain → its column in transcripts.jsonl."""
SHOWN_GAINS = 8
"""Number of responses in the table."""
ATTACK_NOTE = (
    "Means over prompts with 95 % interval, in standard deviations over start responses. The search edits the start "
    "response and sees only the reward. The fixed exploits add nothing to a response, so a good reward does not pay "
    "for them. A policy that was trained on the reward is named by its role. All responses: `transcripts.jsonl`; for a "
    "model card: `card.md`."
)


def attack(run: StoredRun) -> PageSection | None:
    """Return the section of an attack; None for a run that attacked nothing."""
    if "attack_gain" not in run.results:
        return None
    figures = []
    for what, title in (("reward", "What does the reward pay?"), ("gold", "What is it worth?")):
        if levels := attack_levels(run, what):
            chart = dot_chart(levels, title=title, x_label=f"{what} gained, sd of start responses")
            figures += figure_boxes((title, "", chart))
    headings = ("attack and gains", "start response", "response of the attack")
    return PageSection(
        "Attack on the reward",
        ATTACK_NOTE,
        table=ReportTable(headings, largest_gains(run), "left fold"),
        template=f"{__package__}:card.html.j2",
        values={"rows": [figures]},
    )


def attack_levels(run: StoredRun, what: str) -> list[Level]:
    """Return the gains of the search, then of exploits and trained policies, largest first, for "reward" or "gold"."""
    levels = []
    if SEARCH_GAINS[what] in run.results:
        levels.append(Level("search", run.results[SEARCH_GAINS[what]]))
    others = {name: gain for name, gain in run.results.items() if name.startswith(GAIN_PREFIXES[what])}
    for name in largest_first(others):
        kind, _, attack = name.partition("/")
        title = f"policy {attack}" if kind.startswith("trained") else attack
        levels.append(Level(title.replace("_", " "), run.results[name]))
    return levels


def largest_gains(run: StoredRun) -> list[tuple[str, str, str]]:
    """Return the responses that gain most, one per attack, as rows of text."""
    rows: dict[str, tuple[str, str, str]] = {}
    for row in read_jsonl(run.path / "transcripts.jsonl"):
        known = [f"{what} {row[key]:+.2f}" for what, key in COLUMN_OF_GAIN.items() if row[key] is not None]
        attack = row["attack"].replace("trained/", "policy ").replace("_", " ")
        title = f"{attack}: {', '.join(known).replace('-', '−')}"
        rows.setdefault(row["attack"], (title, row["start"], row["response"]))
    return list(rows.values())[:SHOWN_GAINS]
