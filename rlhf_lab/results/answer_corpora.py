"""Sentences that answer the question of a run that generates data.

They state how much was kept, why the rest was rejected, and how good the kept data are.
"""

from __future__ import annotations

from rlhf_lab.results.rundir import StoredRun
from rlhf_lab.results.wording import compact

REJECTED = "made/rejected/"
"""Prefix of the metrics that count rejected items by reason."""


def synthetic_corpus(run: StoredRun) -> str | None:
    """Return the number of rows, the most frequent reason for rejection, and label quality if gold is known."""
    sentence = _yield_clause(run, "items became rows")
    if sentence is None:
        return None
    if (agreement := run.results.get("made/label_agreement")) is not None:
        sentence += f"; {compact(agreement)} of the labels agree with the order of the true reward"
    if (gain := run.results.get("made/gold_gain")) is not None:
        sentence += f"; a kept response has {compact(gain)} more gold reward than its draft"
    return f"{sentence}."


def pairs_of_steps(run: StoredRun) -> str | None:
    """Return the number of pairs, the most frequent reason for having none, and the agreement with a world's labels."""
    sentence = _yield_clause(run, "solutions with a wrong answer gave a pair of steps")
    if sentence is None:
        return None
    if (agreement := run.results.get("made/label_agreement")) is not None:
        sentence += f"; the world finds the steps of {compact(agreement)} of the pairs right and wrong as labelled"
    return f"{sentence}."


def rejections(run: StoredRun) -> dict[str, float]:
    """Return reason → number of items rejected for it."""
    counts = {name: count.mean for name, count in run.results.items() if name.startswith(REJECTED)}
    return {name.removeprefix(REJECTED): count for name, count in counts.items()}


def _yield_clause(run: StoredRun, event: str) -> str | None:
    """Return how many items became rows, and the most frequent reason for rejecting the others; None without counts.

    Args:
        event: what happened to the items that became rows, such as "items became rows".
    """
    rows, items = run.results.get("made/rows"), run.results.get("made/items")
    if rows is None or items is None:
        return None
    clause = f"{rows.mean:.0f} of {items.mean:.0f} {event}"
    if rejected := rejections(run):
        problem = max(rejected, key=lambda name: rejected[name])
        clause += f"; the most frequent reason for rejecting the others was “{problem}” ({rejected[problem]:.0f})"
    return clause
