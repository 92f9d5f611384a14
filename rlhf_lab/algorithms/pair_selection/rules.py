"""Rules that select pairs: folds, top fraction by rank, random and length-matched controls, DPO's difficulty of a pair.

Results depend only on arrays and a seed. Positions are returned in ascending order, so a subset keeps the order of its
source.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.core.types import FloatArray

IntArray = NDArray[np.int64]
LENGTH_BINS = 20
"""Number of quantile bins in which a length-matched subset has the same counts as its target."""


def prompt_folds(prompts_N: Sequence[str], folds: int, seed: int) -> IntArray:
    """Return the fold of each pair, 0 … folds − 1, (N,). Pairs of one prompt share a fold; folds have similar sizes."""
    prompts, index_N, counts = np.unique(np.asarray(prompts_N, dtype=object), return_inverse=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(prompts))
    # Concatenate the pairs, prompt by prompt in random order. The position of a prompt's middle pair decides its fold.
    middle = np.cumsum(counts[order]) - counts[order] / 2
    fold_of_prompt = np.empty(len(prompts), dtype=np.int64)
    fold = (middle * folds / len(index_N)).astype(np.int64)
    fold_of_prompt[order] = np.minimum(fold, folds - 1)
    return fold_of_prompt[index_N]


def shard_size(count: int, keep: float) -> int:
    """Return the number of pairs in the fraction `keep` of `count`; the minimum is 1."""
    return max(1, round(keep * count))


def random_subset(count: int, size: int, seed: int) -> IntArray:
    """Return `size` random positions below `count`. For one seed and count, larger subsets contain smaller ones."""
    return np.sort(np.random.default_rng(seed).permutation(count)[:size])


def top_fraction(values_N: FloatArray, keep: float, fold_N: IntArray) -> IntArray:
    """Return the positions of the fraction `keep` with the largest values, evenly over the folds.

    A separate model scored each fold, so values are compared by their rank within the fold. Smaller fractions are
    contained in larger ones.
    """
    rank_N = np.empty(len(values_N))
    for fold in np.unique(fold_N):
        in_fold = np.flatnonzero(fold_N == fold)
        order = in_fold[np.argsort(-values_N[in_fold], kind="stable")]
        # Folds differ in size, so ranks are scaled to (0, 1) before folds are compared.
        rank_N[order] = (np.arange(len(in_fold)) + 0.5) / len(in_fold)
    size = shard_size(len(values_N), keep)
    best = np.argsort(rank_N, kind="stable")[:size]
    return np.sort(best)


def length_matched(length_N: FloatArray, target: IntArray, seed: int) -> IntArray:
    """Sample as many positions as `target` has, with the same distribution of `length_N`.

    The quantiles of the target's lengths define `LENGTH_BINS` bins. From all positions in a bin, as many are sampled as
    the target has there. If the target contains nearly all of a bin, the sample mostly repeats the target.
    """
    # Only inner edges, so that the outer bins are open. Equal quantiles would make empty bins, hence `unique`.
    inner_quantiles = np.linspace(0, 1, LENGTH_BINS + 1)[1:-1]
    edges = np.unique(np.quantile(length_N[target], inner_quantiles))
    bin_N = np.searchsorted(edges, length_N, side="left")
    target_counts = np.bincount(bin_N[target], minlength=len(edges) + 1)
    order = np.random.default_rng(seed).permutation(len(length_N))
    bin_in_order_N = bin_N[order]
    selected = [order[bin_in_order_N == b][:count] for b, count in enumerate(target_counts)]
    return np.sort(np.concatenate(selected))


def headroom(margin_N: FloatArray, ref_gap_N: FloatArray, *, beta: float) -> FloatArray:
    """Return m − β·c of each pair, nats, (N,); if positive, DPO's optimal policy ranks the pair as labelled.

    The optimum of the DPO objective is π*(y) ∝ π_ref(y)·exp(r(y)/β) with r(chosen) − r(rejected) = logit p, p the
    probability that an annotator prefers the chosen response. Hence

        log π*(chosen) − log π*(rejected) = logit(p)/β − c,      c = log π_ref(rejected)/π_ref(chosen)

    The difference is positive exactly if logit p > β·c: the annotators' preference has to exceed β times the
    reference's opposite preference. A pair that the reference ranks correctly (c < 0) and on which annotators agree is
    learnable at any β. A pair that it ranks wrongly is learnable only below the critical β = logit(p)/c. The same β·c
    is the loss threshold at which a single pair flips, −log σ(β·c) (arXiv:2405.19534, theorem 4.1). The margin of a
    Bradley-Terry model approximates logit p.

    Args:
        margin_N: m, an estimate of logit p.
        ref_gap_N: log π_ref(chosen) − log π_ref(rejected) = −c, nats per response.
    """
    return margin_N + beta * ref_gap_N


def filter_responses(rewards_G: FloatArray, size: int, how: str, rng: np.random.Generator) -> IntArray:
    """Return the positions of the `size` responses of a group that a rollout filter keeps (PF-PPO, arXiv:2409.06957).

    `best` keeps the highest rewards, `best_worst` half from each end, `best_random` the best half and a random choice
    of the others. An odd count gives the best side one more. Among equal rewards, the earlier response ranks higher.
    Responses without a reward (NaN) are used only if too few have one.
    """
    scored = np.flatnonzero(np.isfinite(rewards_G))
    ranked = scored[np.argsort(-rewards_G[scored], kind="stable")]
    if len(ranked) <= size:
        unscored = np.flatnonzero(~np.isfinite(rewards_G))
        missing = size - len(ranked)
        return np.sort(np.concatenate([ranked, unscored[:missing]]))
    best = size if how == "best" else (size + 1) // 2
    below_best = ranked[best:]
    # `best_worst` takes the others from the end, i.e. worst first
    candidates = rng.permutation(below_best) if how == "best_random" else below_best[::-1]
    return np.sort(np.concatenate([ranked[:best], candidates[: size - best]]))
