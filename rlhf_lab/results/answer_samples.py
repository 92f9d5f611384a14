"""Answer of a run that selects among samples: the effect of more samples, and their cost."""

from __future__ import annotations

from rlhf_lab.results.rundir import StoredRun
from rlhf_lab.results.wording import compact

ACCURACY, TOKENS = "accuracy@", "tokens@"
"""Prefixes of the metrics; the number of samples follows."""


def chosen_among_samples(run: StoredRun) -> str | None:
    """Return accuracy and tokens with the minimum and the maximum number of samples."""
    sizes = sorted(int(name.removeprefix(ACCURACY)) for name in run.results if name.startswith(ACCURACY))
    if not sizes:
        return None
    smallest, largest = sizes[0], sizes[-1]
    text = _in_words(run, largest)
    answer = text if smallest == largest else f"{text}; {_in_words(run, smallest)}"
    return f"{answer[0].upper()}{answer[1:]}."


def _in_words(run: StoredRun, size: int) -> str:
    samples = "one sample" if size == 1 else f"{size} samples"
    tokens = run.results.get(f"{TOKENS}{size}")
    cost = f" for {tokens.mean:.0f} tokens a prompt" if tokens is not None else ""
    accuracy = compact(run.results[f"{ACCURACY}{size}"])
    return f"with {samples} {accuracy} of the prompts are answered correctly{cost}"
