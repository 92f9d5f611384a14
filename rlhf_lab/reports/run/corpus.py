"""Section of a stage that generates data: outcomes of its items."""

from __future__ import annotations

from rlhf_lab.figures.charts import Level, dot_chart
from rlhf_lab.figures.layers import Chart
from rlhf_lab.reports.sections import PageSection
from rlhf_lab.results.answer_corpora import rejections
from rlhf_lab.results.rundir import StoredRun
from rlhf_lab.statistics.inference import wilson


def corpus(run: StoredRun) -> PageSection | None:
    """Return the section on the items of a stage that generates data; None for other runs."""
    note = "Rows are in `corpus.jsonl`, rejected items in `rejected.jsonl`; intervals are 95 %."
    figure = corpus_dots(run)
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
