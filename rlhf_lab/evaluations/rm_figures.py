"""What a report card leaves for its figures: `reward_report.json`, and one row per pair in `pairs.jsonl`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlhf_lab.core.types import FloatArray, Pair
from rlhf_lab.evaluations.reward_audit import pair_words, prompt_ids
from rlhf_lab.statistics import calibration
from rlhf_lab.statistics.inference import clustered_rate
from rlhf_lab.statistics.reward_distance import starc_distances

FILE = "reward_report.json"
GROUPS = 6
"""Groups of equal count along an axis of length."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
COMPARED = 10
"""Rewards in the distance matrix at most."""


def pair_figures(margin_N: FloatArray, unit: float, pairs: Sequence[Pair], bins: int) -> dict[str, Any]:
    """Reliability before and after scaling, and accuracy by difference in length."""
    clusters, logit_N = prompt_ids(pairs), margin_N * unit
    versions = {"raw": logit_N, "scaled": calibration.rescaled(logit_N, clusters)}
    return {
        "reliability": {
            name: [
                {"confidence": one.confidence, **one.accuracy.to_dict()}
                for one in calibration.reliability(values_N, clusters, bins)
            ]
            for name, values_N in versions.items()
        },
        "accuracy_by_length": accuracy_by_length(margin_N, pairs),
    }


def accuracy_by_length(margin_N: FloatArray, pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """Accuracy of groups of pairs from "chosen much shorter" to "chosen much longer"; a tie counts as wrong."""
    clusters, (chosen_N, rejected_N) = prompt_ids(pairs), pair_words(pairs)
    gap_N, wins_N = chosen_N - rejected_N, np.where(np.isnan(margin_N), np.nan, margin_N > 0)
    return [
        {"words": float(gap_N[part].mean()), **clustered_rate(wins_N[part], clusters[part]).to_dict()}
        for part in equal_groups(gap_N)
        if not np.isnan(wins_N[part]).all()
    ]


def reply_figures(rewards: Mapping[str, FloatArray], words_N: FloatArray, prompts: Sequence[str]) -> dict[str, Any]:
    """Scores by length of policy replies, and the distances between rewards.

    Args:
        rewards: the reward first, its parts, and the truth where it is known, (N,) each.
    """
    scores_N = rewards["reward"]
    by_length = []
    for part in equal_groups(words_N):
        scored = scores_N[part][~np.isnan(scores_N[part])]
        if scored.size:
            ends = (float(words_N[part].min()), float(words_N[part].max()))
            by_length.append({"words": ends, "n": int(scored.size), "five": np.quantile(scored, QUANTILES).tolist()})
    found = starc_distances(rewards, prompts)
    distances = [{"between": list(names), **value.to_dict()} for names, value in found.items()]
    return {"score_by_length": by_length, "distances": {"names": list(rewards), "pairs": distances}}


def distinct(scores_N: FloatArray, parts: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """The reward and those of its parts that are rewards of their own, `COMPARED` at most.

    Left out are repetitions (the one term of a graph is its reward), constants, and the disagreement of an ensemble.
    """
    kept = {"reward": scores_N}
    for name, values in parts.items():
        known = values[~np.isnan(values)]
        says = known.size and np.ptp(known) > 0 and name.rpartition("/")[2] != "disagreement"
        if says and not any(np.array_equal(values, other, equal_nan=True) for other in kept.values()):
            kept[name] = values
    return dict(list(kept.items())[:COMPARED])


def equal_groups(values_N: FloatArray) -> list[np.ndarray]:
    """Positions in order of value, in at most `GROUPS` groups of about equal count; equal values stay together."""
    edges = np.unique(np.quantile(values_N, np.linspace(0, 1, GROUPS + 1)[1:-1]))
    place_N = np.searchsorted(edges, values_N, side="left")
    return [np.flatnonzero(place_N == place) for place in np.unique(place_N)]


def pair_rows(margin_N: FloatArray, pairs: Sequence[Pair]) -> str:
    """JSONL: a pair's prompt number, margin in units of the reward, lengths in words, and what the data know of it."""
    known, (chosen_N, rejected_N) = ("p_chosen", "gold_chosen", "gold_rejected"), pair_words(pairs)
    rows = zip(
        prompt_ids(pairs).tolist(), margin_N.tolist(), chosen_N.tolist(), rejected_N.tolist(), pairs, strict=True
    )
    return "".join(
        json.dumps(
            {
                "prompt_id": prompt,
                "margin": None if math.isnan(margin) else round(margin, 6),
                "words_chosen": int(chosen),
                "words_rejected": int(rejected),
                **{key: round(float(pair.meta[key]), 6) for key in known if key in pair.meta},
            }
        )
        + "\n"
        for prompt, margin, chosen, rejected, pair in rows
    )
