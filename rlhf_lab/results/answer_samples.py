"""The answer of a run that chooses among samples: what more of them buy, and what they cost."""

from __future__ import annotations

from rlhf_lab.results.rundir import Run
from rlhf_lab.results.wording import compact

ACCURACY, TOKENS = "accuracy@", "tokens@"


def chosen_among_samples(run: Run) -> str | None:
    """Accuracy and tokens with the fewest and with the most samples."""
    sizes = sorted(int(name.removeprefix(ACCURACY)) for name in run.results if name.startswith(ACCURACY))
    if not sizes:
        return None
    fewest, most = sizes[0], sizes[-1]
    said = _in_words(run, most)
    answer = said if fewest == most else f"{said}; {_in_words(run, fewest)}"
    return f"{answer[0].upper()}{answer[1:]}."


def _in_words(run: Run, size: int) -> str:
    samples = "one sample" if size == 1 else f"{size} samples"
    tokens = run.results.get(f"{TOKENS}{size}")
    cost = f" for {tokens.mean:.0f} tokens a prompt" if tokens is not None else ""
    return f"with {samples} {compact(run.results[f'{ACCURACY}{size}'])} of the prompts are answered rightly{cost}"
