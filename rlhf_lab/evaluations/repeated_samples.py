"""pass@k and maj@k of a policy's sampled responses, with intervals over prompts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhf_lab.core.types import AnswerReading, Oracle
from rlhf_lab.statistics.estimates import Estimate
from rlhf_lab.statistics.repeated_samples import majority_at_k, pass_at_k
from rlhf_lab.statistics.rows import column, fractions_at, grouped

Rows = list[dict[str, Any]]
"""Rows of evaluation.jsonl."""


def rounded(value: float | None) -> float | None:
    """Return a value of a row with six digits. NaN, which JSON lacks, becomes None."""
    return None if value is None or math.isnan(value) else round(float(value), 6)


def by_prompt(rows: Sequence[dict[str, Any]]) -> list[Rows]:
    return list(grouped(rows, "prompt_id").values())


def repeated_samples(
    rows: Sequence[dict[str, Any]], sizes: Sequence[int], oracle: Oracle | None
) -> dict[str, Estimate]:
    """Return `pass@k`, and `maj@k` if responses state a final answer; {} if the correct responses are unknown.

    Args:
        sizes: values of k, up to the number of samples per prompt.
    """
    prompts = by_prompt(rows)
    correct = [column(responses, "correct") for responses in prompts]
    # `correct` is null for data without verifiable answers
    if not sizes or all(np.isnan(correct_N).all() for correct_N in correct):
        return {}
    # number of samples behind the estimate, for the width of the interval
    trials = sum(int(np.isfinite(correct_N).sum()) for correct_N in correct)
    each_prompt = np.arange(len(prompts))
    passed = [pass_at_k(correct_N, sizes) for correct_N in correct]
    metrics = fractions_at("pass", sizes, passed, each_prompt, trials)
    answers = [read_answers(oracle, responses) for responses in prompts]
    if None not in answers:
        votes = [
            majority_at_k(stated or [], correct_N, sizes) for stated, correct_N in zip(answers, correct, strict=True)
        ]
        metrics |= fractions_at("maj", sizes, votes, each_prompt, trials)
    return metrics


def read_answers(oracle: Oracle | None, responses: Rows) -> list[str | None] | None:
    """Return the final answers of responses in the form used for majority votes; None if the data have none."""
    if not isinstance(oracle, AnswerReading):
        return None
    return oracle.read_answers([row["response"] for row in responses])
