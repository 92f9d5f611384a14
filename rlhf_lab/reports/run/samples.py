"""Samples of a run: responses side by side, distribution of single samples, and outcomes of generated items."""

from __future__ import annotations

from typing import Any

from rlhf_lab.figures.charts import Level, dot_chart, spread
from rlhf_lab.figures.layers import Chart
from rlhf_lab.reports.sections import PageSection
from rlhf_lab.results.answer_corpora import rejections
from rlhf_lab.results.gains import five_numbers, policy_names
from rlhf_lab.results.rundir import StoredRun
from rlhf_lab.results.samples import pick_samples
from rlhf_lab.results.wording import metric_title
from rlhf_lab.statistics.inference import wilson

BUDGET_BYTES = 3_000_000
"""Maximum size of the samples on a page. All evaluation prompts of the built-in recipes fit into this size, and the
page still opens quickly."""


def samples(run: StoredRun) -> PageSection | None:
    return samples_section(pick_samples(run, budget=BUDGET_BYTES))


def samples_section(samples: dict[str, Any]) -> PageSection | None:
    """Return the section with the samples of `pick_samples` and a script to browse them; None without samples."""
    if not samples["prompts"]:
        return None
    return PageSection("Samples side by side", template="samples.html.j2", values={"samples": samples})


def sample_distributions(run: StoredRun) -> PageSection | None:
    """Return the section on the distributions of gold (or proxy) and length over samples; None without samples."""
    note = "Line: 5 to 95 % of samples. Bar: 25 to 75 %. Tick: median."
    charts = []
    for metric in ("gold" if run.has_gold else "proxy", "tokens"):
        if metric not in run.evaluation:
            continue
        values = {name: run.evaluation.loc[run.evaluation["policy"] == name, metric] for name in policy_names(run)}
        if quantiles := {name: five for name in values if (five := five_numbers(values[name].to_numpy()))}:
            title = metric_title(metric)
            charts.append(
                spread(quantiles, title=f"{title} of single samples, by policy", x_label=f"{title} per sample")
            )
    if not charts:
        return None
    template = f"{__package__}:spreads.html.j2"
    return PageSection("Distribution of single samples", note, template=template, values={"charts": charts})


def corpus(run: StoredRun) -> PageSection | None:
    """Return the section on the items of a stage that generates data; None for other runs."""
    figure = corpus_dots(run)
    note = "Rows are in `corpus.jsonl`, rejected items in `rejected.jsonl`; intervals are 95 %."
    return PageSection("Synthetic data", note, [figure]) if figure else None


def corpus_dots(run: StoredRun) -> Chart | None:
    """Plot the fractions of items that were accepted, and rejected for each reason; None if no data were generated."""
    items = run.results.get("made/items")
    accepted = run.results.get("made/acceptance")
    if items is None or accepted is None or not items.mean:
        return None
    levels = [Level("accepted", accepted, reference=True)]
    for problem, count in sorted(rejections(run).items(), key=lambda entry: -entry[1]):
        rate = wilson(round(count), round(items.mean))
        levels.append(Level(problem, rate, colour=1, units="items"))
    return dot_chart(levels, title="Outcome of the items", x_label="fraction of items")
