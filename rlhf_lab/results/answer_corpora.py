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
    results = run.results
    rows, items = results.get("made/rows"), results.get("made/items")
    if rows is None or items is None:
        return None
    sentence = f"{rows.mean:.0f} of {items.mean:.0f} items became rows{_most_frequent_rejection(run)}"
    if (agreement := results.get("made/label_agreement")) is not None:
        sentence += f"; {compact(agreement)} of the labels agree with the order of the true reward"
    if (gain := results.get("made/gold_gain")) is not None:
        sentence += f"; a kept response has {compact(gain)} more gold reward than its draft"
    return f"{sentence}."


def pairs_of_steps(run: StoredRun) -> str | None:
    """Return the number of pairs, the most frequent reason for having none, and whether a world judges them alike."""
    results = run.results
    pairs, solutions = results.get("made/rows"), results.get("made/items")
    if pairs is None or solutions is None:
        return None
    sentence = f"{pairs.mean:.0f} of {solutions.mean:.0f} solutions with a wrong answer gave a pair of steps"
    sentence += _most_frequent_rejection(run)
    if (agreement := results.get("made/label_agreement")) is not None:
        sentence += f"; the world finds the steps of {compact(agreement)} of the pairs right and wrong as labelled"
    return f"{sentence}."


def _most_frequent_rejection(run: StoredRun) -> str:
    """Return a clause about the most frequent reason for rejecting an item; empty if none was rejected."""
    rejected = {}
    for name, count in run.results.items():
        if name.startswith(REJECTED):
            rejected[name.removeprefix(REJECTED)] = count.mean
    if not rejected:
        return ""
    problem = max(rejected, key=lambda name: rejected[name])
    return f"; the most frequent reason for rejecting the others was “{problem}” ({rejected[problem]:.0f})"
