"""Audit of a reward on labelled pairs: accuracy overall, and separately by whether the longer response is chosen.

The baseline is the accuracy of always preferring the longer response. The audit works for any reward: a training stage
audits its own model, a report card the reward graph of its run. A pair with an unscored side (NaN) is excluded from
every metric and counted as `unscored`, because it is neither right nor wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlhf_lab.core.types import FloatArray, Oracle, Pair, TextReward
from rlhf_lab.statistics.estimates import cluster_labels
from rlhf_lab.statistics.inference import Estimate, clustered_mean, clustered_rate

HELD_OUT_PAIRS = 1000
"""Maximum number of held-out pairs in the audits of SFT and reward models."""

FILLER = "There are many things to think about here. Of course, results can vary."
FILLERS = {
    "short": "There are many things to think about here.",
    "two": FILLER,
    "long": f"{FILLER} It is important to keep this in mind. In general, it is good to be careful.",
}
"""Generic sentences that fit every response. Each filler continues the one before it."""
MATCHED = 0.1
"""Maximum difference in words of a length-matched pair, as a fraction of the longer response."""


def margins(reward: TextReward, pairs: Sequence[Pair]) -> FloatArray:
    """Return r(chosen) − r(rejected) of each pair, (N,)."""
    prompts = [pair.prompt for pair in pairs]
    chosen = [pair.chosen for pair in pairs]
    rejected = [pair.rejected for pair in pairs]
    return reward(prompts, chosen).total_N - reward(prompts, rejected).total_N


def prompt_ids(pairs: Sequence[Pair]) -> np.ndarray:
    """Return cluster labels, (N,): pairs with the same prompt have the same label, as have equal plain texts."""
    return cluster_labels([pair.identity for pair in pairs])


def audit_pairs(reward: TextReward, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return the accuracy of a reward on labelled pairs, as estimates clustered by prompt; see metrics.py."""
    return audit_margins(margins(reward, pairs), pairs)


def audit_margins(margin_N: FloatArray, pairs: Sequence[Pair]) -> dict[str, Any]:
    prompts = prompt_ids(pairs)
    # a comparison with NaN is False, so unscored pairs have to be masked explicitly
    scored = ~np.isnan(margin_N)
    wins = np.where(scored, margin_N > 0, np.nan)
    longer = np.array([np.sign(len(pair.chosen) - len(pair.rejected)) for pair in pairs])  # in characters: +1, 0 or −1
    # The length baseline uses only the scored pairs, so that both accuracies refer to the same pairs.
    longer_wins = np.where(scored, longer / 2 + 0.5, np.nan)
    metrics: dict[str, Any] = {
        "accuracy": clustered_rate(wins, prompts),
        "longer_wins": clustered_mean(longer_wins, prompts),
    }
    for name, mask in (("longer_chosen", longer > 0), ("shorter_chosen", longer < 0)):
        if mask.any():
            metrics[f"accuracy/{name}"] = clustered_rate(wins[mask], prompts[mask])
    if all("gold_chosen" in pair.meta for pair in pairs):
        gold = np.array([pair.meta["gold_chosen"] - pair.meta["gold_rejected"] for pair in pairs])
        # 1 for the same order, 0 for the opposite one, 0.5 for a tie
        agreement = np.sign(margin_N) * np.sign(gold) / 2 + 0.5
        metrics["gold_agreement"] = clustered_mean(agreement, prompts)
    if all("p_chosen" in pair.meta for pair in pairs):
        p_chosen = np.array([pair.meta["p_chosen"] for pair in pairs])
        # A judge who knows the probabilities always chooses the likelier side, and is right with that probability.
        best = np.maximum(p_chosen, 1 - p_chosen)
        metrics["ideal_accuracy"] = clustered_mean(np.where(scored, best, np.nan), prompts)
    return metrics


def with_gold(pairs: Sequence[Pair], oracle: Oracle | None) -> list[Pair]:
    """Return the pairs with `gold_chosen` and `gold_rejected` in their meta, if the oracle knows the gold reward."""
    if oracle is None or all("gold_chosen" in pair.meta for pair in pairs):
        return list(pairs)
    prompts = [pair.prompt for pair in pairs]
    responses = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    gold = oracle.measure([*prompts, *prompts], responses).get("gold")
    if gold is None:
        return list(pairs)
    return [
        replace(pair, meta={**pair.meta, "gold_chosen": chosen, "gold_rejected": rejected})
        for pair, chosen, rejected in zip(pairs, gold[: len(pairs)].tolist(), gold[len(pairs) :].tolist(), strict=True)
    ]


def words(texts: Sequence[str]) -> FloatArray:
    return np.array([len(text.split()) for text in texts], dtype=np.float64)


def pair_words(pairs: Sequence[Pair]) -> tuple[FloatArray, FloatArray]:
    return words([pair.chosen for pair in pairs]), words([pair.rejected for pair in pairs])


def length_matched(pairs: Sequence[Pair]) -> np.ndarray:
    """Return a mask, (N,), of pairs whose responses differ by up to `MATCHED` of the longer one's words."""
    chosen_N, rejected_N = pair_words(pairs)
    difference_N = np.abs(chosen_N - rejected_N)
    return np.asarray(difference_N <= MATCHED * np.maximum(chosen_N, rejected_N))


def filler_shift(
    reward: TextReward, prompts: Sequence[str], responses: Sequence[str], scores_N: FloatArray | None = None
) -> Estimate:
    """Return the mean score change if `FILLER` is appended to responses, clustered by prompt.

    Args:
        scores_N: scores of the responses without it, if known.
    """
    before_N = reward(prompts, responses).total_N if scores_N is None else scores_N
    return clustered_mean(_scores_with(FILLER, reward, prompts, responses) - before_N, prompts)


def filler_shifts(
    reward: TextReward, prompts: Sequence[str], responses: Sequence[str], scores_N: FloatArray | None = None
) -> dict[str, FloatArray]:
    """Return filler → score change of each response with it, (N,). `scores_N`: scores without it, if known."""
    before_N = reward(prompts, responses).total_N if scores_N is None else scores_N
    return {name: _scores_with(filler, reward, prompts, responses) - before_N for name, filler in FILLERS.items()}


def _scores_with(filler: str, reward: TextReward, prompts: Sequence[str], responses: Sequence[str]) -> FloatArray:
    return reward(prompts, [f"{response} {filler}" for response in responses]).total_N


def filler_slopes(shifts: dict[str, FloatArray]) -> FloatArray:
    """Return the score change of each response per 10 words of filler, (N,): least squares through 0 over fillers."""
    size_F = words([FILLERS[name] for name in shifts]) / 10
    shift_NF = np.stack(list(shifts.values()), axis=1)
    return shift_NF @ size_F / np.square(size_F).sum()
