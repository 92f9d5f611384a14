"""Panel of a stage that made data: what became of its items."""

from __future__ import annotations

from rlhf_lab.figures.charts import Level, dots
from rlhf_lab.figures.layers import Chart
from rlhf_lab.reports.sections import PageSection
from rlhf_lab.results.answer_corpora import REJECTED
from rlhf_lab.results.rundir import Run
from rlhf_lab.statistics.inference import wilson


def corpus(run: Run) -> PageSection | None:
    """What became of the items of a stage that makes data; None for other runs."""
    note = "Rows are in `corpus.jsonl`, everything that was rejected in `rejected.jsonl`, with 95 % intervals here."
    figure = corpus_dots(run)
    return PageSection("The data that were made", note, [figure]) if figure else None


def corpus_dots(run: Run) -> Chart | None:
    """Share of the items that became a row, and that were rejected for each reason; None where no data were made."""
    items = run.results.get("made/items")
    accepted = run.results.get("made/acceptance")
    if items is None or accepted is None or not items.mean:
        return None
    counts = {name.removeprefix(REJECTED): n.mean for name, n in run.results.items() if name.startswith(REJECTED)}
    levels = [Level("accepted", accepted, reference=True)]
    for problem, count in sorted(counts.items(), key=lambda entry: -entry[1]):
        levels.append(Level(problem, wilson(round(count), round(items.mean)), colour=1, units="items"))
    return dots(levels, title="What became of the items", x_label="share of items")
