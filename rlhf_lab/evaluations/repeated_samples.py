"""pass@k and maj@k of a policy's sampled replies, with intervals over prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhf_lab.core.types import AnswerReading, FloatArray, Oracle
from rlhf_lab.statistics.estimates import Estimate, floats
from rlhf_lab.statistics.inference import clustered_fraction
from rlhf_lab.statistics.repeated_samples import majority_at_k, pass_at_k

Rows = list[dict[str, Any]]
"""Rows of evaluation.jsonl."""


def by_prompt(rows: Sequence[dict[str, Any]]) -> list[Rows]:
    """Prompt-major rows, a list per prompt."""
    groups: dict[int, Rows] = {}
    for row in rows:
        groups.setdefault(row["prompt_id"], []).append(row)
    return list(groups.values())


def repeated_samples(
    rows: Sequence[dict[str, Any]], sizes: Sequence[int], oracle: Oracle | None
) -> dict[str, Estimate]:
    """`pass@k`, and `maj@k` where replies state a final answer; nothing where it is unknown which replies are right.

    Args:
        sizes: values of k, none above the samples per prompt.
        oracle: of the data; it reads the answers.
    """
    prompts = by_prompt(rows)
    correct = [floats([row["correct"] for row in replies]) for replies in prompts]
    if not sizes or all(np.isnan(correct_N).all() for correct_N in correct):
        return {}
    trials = sum(int(np.isfinite(correct_N).sum()) for correct_N in correct)
    metrics = _estimates("pass", sizes, [pass_at_k(correct_N, sizes) for correct_N in correct], trials)
    answers = [read_answers(oracle, replies) for replies in prompts]
    if None not in answers:
        votes = [
            majority_at_k(stated or [], correct_N, sizes) for stated, correct_N in zip(answers, correct, strict=True)
        ]
        metrics |= _estimates("maj", sizes, votes, trials)
    return metrics


def read_answers(oracle: Oracle | None, replies: Rows) -> list[str | None] | None:
    """The final answers of replies as they are counted in a vote; None where the data have none."""
    if not isinstance(oracle, AnswerReading):
        return None
    return oracle.read_answers([row["response"] for row in replies])


def _estimates(name: str, sizes: Sequence[int], values: list[FloatArray], trials: int) -> dict[str, Estimate]:
    """One estimate per k from the values of every prompt, each (len(sizes),), from `trials` samples in all."""
    values_PK = np.stack(values)
    prompts = np.arange(len(values_PK))
    return {f"{name}@{k}": clustered_fraction(values_PK[:, i], prompts, trials=trials) for i, k in enumerate(sizes)}
