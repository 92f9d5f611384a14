"""Data of the figures of a report card: `reward_report.json`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhf_lab.core.types import FloatArray, Pair
from rlhf_lab.evaluations.reward_audit import pair_words, prompt_ids
from rlhf_lab.statistics import calibration
from rlhf_lab.statistics.inference import clustered_rate

FILE = "reward_report.json"
GROUPS = 6
"""Maximum number of groups of equal size along an axis of length."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles of the scores for each length group."""


def pair_figures(margin_N: FloatArray, unit: float, pairs: Sequence[Pair], bins: int) -> dict[str, Any]:
    """Return reliability before and after temperature scaling, and accuracy by difference in length.

    Args:
        margin_N: r(chosen) − r(rejected) of each pair, (N,).
        unit: logits per unit of reward.
    """
    clusters = prompt_ids(pairs)
    logit_N = margin_N * unit
    versions = {"raw": logit_N, "scaled": calibration.rescaled(logit_N, clusters)}
    reliability = {
        name: [
            {"confidence": point.confidence, **point.accuracy.to_dict()}
            for point in calibration.reliability(values_N, clusters, bins)
        ]
        for name, values_N in versions.items()
    }
    return {"reliability": reliability, "accuracy_by_length": accuracy_by_length(margin_N, pairs)}


def accuracy_by_length(margin_N: FloatArray, pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """Return the accuracy of groups of pairs, from "chosen much shorter" to "chosen much longer"; a tie is wrong."""
    clusters = prompt_ids(pairs)
    chosen_N, rejected_N = pair_words(pairs)
    gap_N = chosen_N - rejected_N
    wins_N = np.where(np.isnan(margin_N), np.nan, margin_N > 0)
    rows = []
    for group in equal_groups(gap_N):
        if not np.isnan(wins_N[group]).all():
            accuracy = clustered_rate(wins_N[group], clusters[group])
            rows.append({"words": float(gap_N[group].mean()), **accuracy.to_dict()})
    return rows


def score_by_length(scores_N: FloatArray, words_N: FloatArray) -> list[dict[str, Any]]:
    """Return quantiles of the scores of policy responses, in groups of similar length.

    Args:
        words_N: number of words of each response, (N,).
    """
    rows = []
    for group in equal_groups(words_N):
        scored = scores_N[group][~np.isnan(scores_N[group])]
        if scored.size:
            group_words = words_N[group]
            shortest_max = (float(group_words.min()), float(group_words.max()))
            five = np.quantile(scored, QUANTILES).tolist()
            rows.append({"words": shortest_max, "n": int(scored.size), "five": five})
    return rows


def equal_groups(values_N: FloatArray) -> list[np.ndarray]:
    """Return indices in order of value, in up to `GROUPS` groups of similar size. Equal values stay together."""
    # equal quantiles would give empty groups
    inner = np.linspace(0, 1, GROUPS + 1)[1:-1]
    edges = np.unique(np.quantile(values_N, inner))
    group_N = np.searchsorted(edges, values_N, side="left")
    return [np.flatnonzero(group_N == group) for group in np.unique(group_N)]
