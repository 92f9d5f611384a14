"""The answer of a run that chooses among samples."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from rlhf_lab.results.answer_policies import chosen_among_samples
from rlhf_lab.statistics.estimates import Estimate


def run_of(**means: float) -> Any:
    return SimpleNamespace(results={name: Estimate(mean, mean - 0.1, mean + 0.1, 9, 9) for name, mean in means.items()})


def test_the_most_samples_beside_the_fewest():
    run = run_of(**{"accuracy@1": 0.5, "accuracy@16": 0.8, "accuracy@4": 0.7, "tokens@1": 24.0, "tokens@16": 384.0})
    text = chosen_among_samples(run)
    assert text.startswith("With 16 samples 0.8")
    assert "for 384 tokens a prompt; with one sample 0.5" in text and text.endswith("for 24 tokens a prompt.")
    assert ";" not in chosen_among_samples(run_of(**{"accuracy@4": 0.7}))  # nothing is beside it
    assert chosen_among_samples(run_of(gold=1.0)) is None
