"""pass@k and maj@k of a policy's sampled responses, with intervals over prompts."""

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
    """Group prompt-major rows into one list per prompt."""
    groups: dict[int, Rows] = {}
    for row in rows:
        groups.setdefault(row["prompt_id"], []).append(row)
    return list(groups.values())


def repeated_samples(
    rows: Sequence[dict[str, Any]], sizes: Sequence[int], oracle: Oracle | None
) -> dict[str, Estimate]:
    """Return `pass@k`, and `maj@k` if responses state a final answer; {} if the correct responses are unknown.

    Args:
        rows: prompt-major rows.
        sizes: values of k, up to the number of samples per prompt.
        oracle: oracle of the data, which reads the answers.
    """
    prompts = by_prompt(rows)
    correct = [floats([row["correct"] for row in responses]) for responses in prompts]
    # `correct` is null for data without verifiable answers
    if not sizes or all(np.isnan(correct_N).all() for correct_N in correct):
        return {}
    # number of samples behind the estimate, for the width of the interval
    trials = sum(int(np.isfinite(correct_N).sum()) for correct_N in correct)
    metrics = _estimates("pass", sizes, [pass_at_k(correct_N, sizes) for correct_N in correct], trials)
    answers = [read_answers(oracle, responses) for responses in prompts]
    # no vote is possible if responses state no final answer
    if None not in answers:
        votes = []
        for stated, correct_N in zip(answers, correct, strict=True):
            votes.append(majority_at_k(stated or [], correct_N, sizes))
        metrics |= _estimates("maj", sizes, votes, trials)
    return metrics


def read_answers(oracle: Oracle | None, responses: Rows) -> list[str | None] | None:
    """Return the final answers of responses in the form used for majority votes; None if the data have none."""
    if not isinstance(oracle, AnswerReading):
        return None
    return oracle.read_answers([row["response"] for row in responses])


def _estimates(name: str, sizes: Sequence[int], values: list[FloatArray], trials: int) -> dict[str, Estimate]:
    """Return one estimate per k from the values of every prompt, each (len(sizes),), with `trials` samples in total."""
    values_PK = np.stack(values)
    prompts = np.arange(len(values_PK))
    return {f"{name}@{k}": clustered_fraction(values_PK[:, i], prompts, trials=trials) for i, k in enumerate(sizes)}
