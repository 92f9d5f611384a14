"""What a reward is worth on labelled pairs: accuracy next to the length baseline, where length is right and wrong.

Works for any reward: a stage audits the model it trained, a report card whatever graph it is given. A pair with an
unscored side (NaN) is left out of every number and counted in its `unscored`: it is neither right nor wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhf_lab.core.types import FloatArray, Pair, Reward
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


def margins(reward: Reward, pairs: Sequence[Pair]) -> FloatArray:
    """r(chosen) − r(rejected) of each pair, (N,)."""
    prompts = [pair.prompt for pair in pairs]
    chosen, rejected = ([getattr(pair, side) for pair in pairs] for side in ("chosen", "rejected"))
    return reward(prompts, chosen).total_N - reward(prompts, rejected).total_N


def prompt_ids(pairs: Sequence[Pair]) -> np.ndarray:
    """Cluster labels: the same prompt, the same number."""
    return np.unique([pair.prompt for pair in pairs], return_inverse=True)[1]


def audit_pairs(reward: Reward, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Accuracy of a reward on labelled pairs, as estimates clustered by prompt; see metrics.py."""
    return audit_margins(margins(reward, pairs), pairs)


def audit_margins(margin_N: FloatArray, pairs: Sequence[Pair]) -> dict[str, Any]:
    """The same from (N,) margins that are there already."""
    prompts, scored = prompt_ids(pairs), ~np.isnan(margin_N)
    longer = np.array([np.sign(len(p.chosen) - len(p.rejected)) for p in pairs])
    wins = np.where(scored, margin_N > 0, np.nan)
    found: dict[str, Any] = {
        "accuracy": clustered_rate(wins, prompts),
        "longer_wins": clustered_mean(np.where(scored, longer / 2 + 0.5, np.nan), prompts),
    }
    for name, mask in (("longer_chosen", longer > 0), ("shorter_chosen", longer < 0)):
        if mask.any():
            found[f"accuracy/{name}"] = clustered_rate(wins[mask], prompts[mask])
    if all("gold_chosen" in p.meta for p in pairs):
        gold = np.array([p.meta["gold_chosen"] - p.meta["gold_rejected"] for p in pairs])
        found["gold_agreement"] = clustered_mean(np.sign(margin_N) * np.sign(gold) / 2 + 0.5, prompts)
    if all("p_chosen" in p.meta for p in pairs):
        p = np.array([pair.meta["p_chosen"] for pair in pairs])
        found["ideal_accuracy"] = clustered_mean(np.where(scored, np.maximum(p, 1 - p), np.nan), prompts)
    return found


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
    reward: Reward, prompts: Sequence[str], replies: Sequence[str], scores_N: FloatArray | None = None
) -> Estimate:
    """Mean score change when `FILLER` is appended to replies, clustered by prompt; `scores_N` are theirs, if known."""
    before_N = reward(prompts, replies).total_N if scores_N is None else scores_N
    after_N = reward(prompts, [f"{reply} {FILLER}" for reply in replies]).total_N
    return clustered_mean(after_N - before_N, np.unique(list(prompts), return_inverse=True)[1])


def filler_shifts(
    reward: Reward, prompts: Sequence[str], replies: Sequence[str], scores_N: FloatArray | None = None
) -> dict[str, FloatArray]:
    """Score change of each reply with each of `FILLERS`, (N,) by filler; `scores_N` are those without, if known."""
    before_N = reward(prompts, replies).total_N if scores_N is None else scores_N
    padded = {name: [f"{reply} {text}" for reply in replies] for name, text in FILLERS.items()}
    return {name: reward(prompts, texts).total_N - before_N for name, texts in padded.items()}


def filler_slopes(shifts: dict[str, FloatArray]) -> FloatArray:
    """Score change of each reply per 10 words of filler, (N,): least squares through 0 over the fillers."""
    size_F = words([FILLERS[name] for name in shifts]) / 10
    return np.stack(list(shifts.values()), axis=1) @ size_F / np.square(size_F).sum()
