"""What a reward is worth on labelled pairs: its accuracy, overall and where the longer or the shorter reply is chosen,
beside the accuracy of simply preferring the longer reply.

Works for any reward: a training stage audits its own model, a report card the reward graph it is given. A pair with an
unscored side (NaN) is left out of every number and counted in its `unscored`: it is neither right nor wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlhf_lab.core.types import FloatArray, Oracle, Pair, TextReward
from rlhf_lab.statistics.inference import Estimate, clustered_mean, clustered_rate

HELD_OUT_PAIRS = 1000
"""Held-out pairs that the audits of SFT and reward models use at most."""

FILLER = "There are many things to think about here. Of course, results can vary."
FILLERS = {
    "short": "There are many things to think about here.",
    "two": FILLER,
    "long": f"{FILLER} It is important to keep this in mind. In general, it is good to be careful.",
}
"""Generic sentences that fit every reply; each filler goes on where the one before it ends."""
MATCHED = 0.1
"""Difference in words, as a share of the longer reply, up to which a pair counts as matched in length."""


def margins(reward: TextReward, pairs: Sequence[Pair]) -> FloatArray:
    """r(chosen) − r(rejected) of each pair, (N,)."""
    prompts = [pair.prompt for pair in pairs]
    chosen = [pair.chosen for pair in pairs]
    rejected = [pair.rejected for pair in pairs]
    return reward(prompts, chosen).total_N - reward(prompts, rejected).total_N


def prompt_ids(pairs: Sequence[Pair]) -> np.ndarray:
    """Cluster labels, (N,): pairs of the same prompt have the same number."""
    return np.unique([pair.prompt for pair in pairs], return_inverse=True)[1]


def audit_pairs(reward: TextReward, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Accuracy of a reward on labelled pairs, as estimates clustered by prompt; see metrics.py."""
    return audit_margins(margins(reward, pairs), pairs)


def audit_margins(margin_N: FloatArray, pairs: Sequence[Pair]) -> dict[str, Any]:
    """The same from margins that were computed before, (N,)."""
    prompts = prompt_ids(pairs)
    scored = ~np.isnan(margin_N)
    wins = np.where(scored, margin_N > 0, np.nan)
    longer = np.array([np.sign(len(pair.chosen) - len(pair.rejected)) for pair in pairs])  # in characters: +1, 0 or −1
    # The length baseline is measured on the scored pairs only, so that both numbers are of the same pairs.
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
        metrics["gold_agreement"] = clustered_mean(np.sign(margin_N) * np.sign(gold) / 2 + 0.5, prompts)
    if all("p_chosen" in pair.meta for pair in pairs):
        p_chosen = np.array([pair.meta["p_chosen"] for pair in pairs])
        # Someone who knows the probabilities always takes the likelier side, and is right that often.
        best = np.maximum(p_chosen, 1 - p_chosen)
        metrics["ideal_accuracy"] = clustered_mean(np.where(scored, best, np.nan), prompts)
    return metrics


def with_gold(pairs: Sequence[Pair], oracle: Oracle | None) -> list[Pair]:
    """The pairs with `gold_chosen` and `gold_rejected` in their meta, where the oracle knows them and they do not."""
    if oracle is None or all("gold_chosen" in pair.meta for pair in pairs):
        return list(pairs)
    prompts = [pair.prompt for pair in pairs]
    replies = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    gold = oracle.measure([*prompts, *prompts], replies).get("gold")
    if gold is None:
        return list(pairs)
    sides = zip(pairs, gold[: len(pairs)].tolist(), gold[len(pairs) :].tolist(), strict=True)
    return [
        replace(pair, meta={**pair.meta, "gold_chosen": chosen, "gold_rejected": rejected})
        for pair, chosen, rejected in sides
    ]


def words(texts: Sequence[str]) -> FloatArray:
    """Length in words, (N,)."""
    return np.array([len(text.split()) for text in texts], dtype=np.float64)


def pair_words(pairs: Sequence[Pair]) -> tuple[FloatArray, FloatArray]:
    """Words of both sides of each pair, (N,) each."""
    return words([pair.chosen for pair in pairs]), words([pair.rejected for pair in pairs])


def length_matched(pairs: Sequence[Pair]) -> np.ndarray:
    """Pairs whose replies differ by at most `MATCHED` of the longer one's words, (N,)."""
    chosen_N, rejected_N = pair_words(pairs)
    return np.asarray(np.abs(chosen_N - rejected_N) <= MATCHED * np.maximum(chosen_N, rejected_N))


def filler_shift(
    reward: TextReward, prompts: Sequence[str], replies: Sequence[str], scores_N: FloatArray | None = None
) -> Estimate:
    """Mean score change when `FILLER` is appended to replies, clustered by prompt; `scores_N`: scores without it."""
    before_N = reward(prompts, replies).total_N if scores_N is None else scores_N
    after_N = reward(prompts, [f"{reply} {FILLER}" for reply in replies]).total_N
    _, clusters = np.unique(list(prompts), return_inverse=True)
    return clustered_mean(after_N - before_N, clusters)


def filler_shifts(
    reward: TextReward, prompts: Sequence[str], replies: Sequence[str], scores_N: FloatArray | None = None
) -> dict[str, FloatArray]:
    """Filler → score change of each reply with it, (N,); `scores_N`: scores without it, if they are known."""
    before_N = reward(prompts, replies).total_N if scores_N is None else scores_N
    shifts = {}
    for name, filler in FILLERS.items():
        padded = [f"{reply} {filler}" for reply in replies]
        shifts[name] = reward(prompts, padded).total_N - before_N
    return shifts


def filler_slopes(shifts: dict[str, FloatArray]) -> FloatArray:
    """Score change of each reply per 10 words of filler, (N,): least squares through 0 over the fillers."""
    size_F = words([FILLERS[name] for name in shifts]) / 10
    shift_NF = np.stack(list(shifts.values()), axis=1)
    return shift_NF @ size_F / np.square(size_F).sum()
