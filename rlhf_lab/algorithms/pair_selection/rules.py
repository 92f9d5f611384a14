"""Which pairs to keep: folds, shares by rank, random and length-matched controls, and DPO's difficulty of a pair.

Everything follows from arrays and a seed. Positions are returned in ascending order, so that a subset keeps the order
of its source.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.core.types import FloatArray

IntArray = NDArray[np.int64]
LENGTH_BINS = 20
"""Quantile bins in which a length-matched subset has the counts of its target."""


def prompt_folds(prompts_N: Sequence[str], folds: int, seed: int) -> IntArray:
    """Fold of each pair, 0 … folds − 1, (N,). Pairs of one prompt share a fold; folds are about equally large."""
    prompts, index_N, counts = np.unique(np.asarray(prompts_N, dtype=object), return_inverse=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(prompts))
    # Pairs laid end to end, prompt by prompt in random order: a prompt is in the fold that its middle pair falls in.
    middle = np.cumsum(counts[order]) - counts[order] / 2
    fold_of_prompt = np.empty(len(prompts), dtype=np.int64)
    fold_of_prompt[order] = np.minimum((middle * folds / len(index_N)).astype(np.int64), folds - 1)
    return fold_of_prompt[index_N]


def share_size(count: int, keep: float) -> int:
    """Pairs in a share of `count`; at least one."""
    return max(1, round(keep * count))


def random_subset(count: int, size: int, seed: int) -> IntArray:
    """`size` of `count` positions. With the same seed and count, a smaller subset lies within a larger one."""
    return np.sort(np.random.default_rng(seed).permutation(count)[:size])


def top_share(values_N: FloatArray, keep: float, fold_N: IntArray) -> IntArray:
    """Positions of the share `keep` with the largest values, taken evenly from the folds.

    Each fold's values come from a model of its own, so they are compared by rank within the fold. Smaller shares lie
    within larger ones.
    """
    rank_N = np.empty(len(values_N))
    for fold in np.unique(fold_N):
        in_fold = np.flatnonzero(fold_N == fold)
        order = in_fold[np.argsort(-values_N[in_fold], kind="stable")]
        rank_N[order] = (np.arange(len(in_fold)) + 0.5) / len(in_fold)  # folds differ in size: ranks in (0, 1)
    return np.sort(np.argsort(rank_N, kind="stable")[: share_size(len(values_N), keep)])


def length_matched(length_N: FloatArray, target: IntArray, seed: int) -> IntArray:
    """As many positions as `target` has, drawn at random, with its distribution of `length_N`.

    The lengths of the target are cut at their quantiles into `LENGTH_BINS` bins; from all positions in a bin as many
    are drawn as the target has there. Where the target has most of a bin, the draw is mostly the target's own.
    """
    edges = np.unique(np.quantile(length_N[target], np.linspace(0, 1, LENGTH_BINS + 1)[1:-1]))
    bin_N = np.searchsorted(edges, length_N, side="left")
    target_counts = np.bincount(bin_N[target], minlength=len(edges) + 1)
    order = np.random.default_rng(seed).permutation(len(length_N))
    drawn = [order[bin_N[order] == b][:count] for b, count in enumerate(target_counts)]
    return np.sort(np.concatenate(drawn))


def headroom(margin_N: FloatArray, ref_gap_N: FloatArray, *, beta: float) -> FloatArray:
    """Log-odds left over when DPO's optimum ranks a pair, m − β·c, nats, (N,); above 0 it ranks it as labelled.

    The optimum of the DPO objective is π*(y) ∝ π_ref(y)·exp(r(y)/β) with r(chosen) − r(rejected) = logit p, p the
    probability that an annotator prefers the chosen reply. Hence

        log π*(chosen) − log π*(rejected) = logit(p)/β − c,      c = log π_ref(rejected)/π_ref(chosen)

    which is above 0 exactly when logit p > β·c: what the reference says against the pair, times β, has to be less than
    what annotators say for it. A pair that the reference ranks right (c < 0) and annotators agree on is learnt at any
    β; one that it ranks wrong only below the critical β = logit(p)/c. The same β·c is the threshold of the loss at
    which a single pair is flipped, −log σ(β·c) (arXiv:2405.19534, theorem 4.1). The margin of a Bradley-Terry model
    stands in for logit p.

    Args:
        margin_N: m, estimate of logit p.
        ref_gap_N: log π_ref(chosen) − log π_ref(rejected) = −c, nats per reply.
    """
    return margin_N + beta * ref_gap_N


def filter_replies(rewards_G: FloatArray, size: int, how: str, rng: np.random.Generator) -> IntArray:
    """Positions of the `size` replies of a group that a rollout filter keeps (PF-PPO, arXiv:2409.06957).

    `best` keeps the highest rewards, `best_worst` half from each end, `best_random` the best half and others at random;
    the odd reply is a best one. Among equal rewards the first reply ranks higher. Replies without a reward (NaN) fill
    up where too few have one.
    """
    scored = np.flatnonzero(np.isfinite(rewards_G))
    ranked = scored[np.argsort(-rewards_G[scored], kind="stable")]
    if len(ranked) <= size:
        unscored = np.flatnonzero(~np.isfinite(rewards_G))
        return np.sort(np.concatenate([ranked, unscored[: size - len(ranked)]]))
    best = size if how == "best" else (size + 1) // 2
    below_best = ranked[best:]
    candidates = rng.permutation(below_best) if how == "best_random" else below_best[::-1]  # else: worst first
    return np.sort(np.concatenate([ranked[:best], candidates[: size - best]]))
