"""Answers of runs that make data: how much was kept, why the rest was not, and what is known of what was kept."""

from __future__ import annotations

from rlhf_lab.results.rundir import Run
from rlhf_lab.results.wording import compact

REJECTED = "made/rejected/"


def corpus_made(run: Run) -> str | None:
    """Rows of items, the most frequent reason for rejecting one, and what the truth says of rows where it is known."""
    results = run.results
    rows, items = results.get("made/rows"), results.get("made/items")
    if rows is None or items is None:
        return None
    sentence = f"{rows.mean:.0f} of {items.mean:.0f} items became rows"
    rejected = {name.removeprefix(REJECTED): n.mean for name, n in results.items() if name.startswith(REJECTED)}
    if rejected:
        problem = max(rejected, key=lambda name: rejected[name])
        sentence += f"; most of the others were rejected as “{problem}” ({rejected[problem]:.0f})"
    if (agreement := results.get("made/label_agreement")) is not None:
        sentence += f"; {compact(agreement)} of the labels are as the true reward orders the replies"
    if (gain := results.get("made/gold_gain")) is not None:
        sentence += f"; a kept reply is worth {compact(gain)} more gold than its draft"
    return f"{sentence}."
