"""Selection of the corpus pairs that a stage trains on: rules, cross-fitted margins, and metrics of the selected pairs.

Rules depend only on arrays and a seed. Positions are returned in ascending order, so a subset keeps the order of its
source.

margins.jsonl has one row per training pair: `pair` (position in the corpus), `fold`, `margin` and `in_sample` (one
value per cycle, oldest first), and `ref_gap`. The header `margins.json` in the same directory names the corpus and the
policy.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.algorithms.pair_selection.settings import PairSettings, Selection
from rlhf_lab.core.errors import ArtifactError, DataError
from rlhf_lab.core.files import json_lines, read_json, read_jsonl, write_json, write_text
from rlhf_lab.core.types import FloatArray, Pair
from rlhf_lab.evaluations.reward_audit import pair_words, prompt_ids
from rlhf_lab.statistics.estimates import win_or_tie
from rlhf_lab.statistics.inference import clustered_mean
from rlhf_lab.training.run import Run

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


HEADER, ROWS = "margins.json", "margins.jsonl"


@dataclass(frozen=True)
class Margins:
    """r(chosen) − r(rejected) of N pairs in C cycles.

    Attributes:
        fold_N: fold of each pair.
        crossfit_CN: margin under the model that was trained on neither the pair nor its prompt.
        in_sample_CN: margin under the next fold's model. The pair was in its training data; in later cycles only
            if it had been selected.
        ref_gap_N: log π(chosen) − log π(rejected) of `policy`, nats per response.
        policy: policy that the cross-fit started from.
    """

    fold_N: IntArray
    crossfit_CN: FloatArray
    in_sample_CN: FloatArray
    ref_gap_N: FloatArray
    policy: str

    def of(self, source: str, cycle: int) -> FloatArray:
        """Return the margins of one cycle (from 1; 0 is the last), (N,). Raise ArtifactError if it does not exist."""
        values_CN = {"crossfit": self.crossfit_CN, "in_sample": self.in_sample_CN}[source]
        if cycle > len(values_CN):
            raise ArtifactError(
                f"selection.cycle={cycle}, but needs.margins has only {len(values_CN)} cycle(s); lower the cycle, "
                "or use needs.margins=pair_margins_2 for the second"
            )
        # cycle 0 becomes index −1, the last one
        return values_CN[cycle - 1]


def corpus_mark(pairs: Sequence[Pair]) -> str:
    """Return a hash of prompts, responses and labels, in order."""
    digest = sha256()
    for pair in pairs:
        digest.update(json.dumps([pair.prompt, pair.chosen, pair.rejected]).encode())
    return digest.hexdigest()[:24]


def write_margins(directory: Path, pairs: Sequence[Pair], margins: Margins) -> None:
    """Write the rows, then the header, so that a directory with a header has all its rows."""
    # Transposed, so that each row has one value per cycle.
    columns = (margins.fold_N, margins.crossfit_CN.T, margins.in_sample_CN.T, margins.ref_gap_N)
    names = ("pair", "fold", "margin", "in_sample", "ref_gap")
    values = zip(range(len(pairs)), *(column.tolist() for column in columns), strict=True)
    rows = [dict(zip(names, row, strict=True)) for row in values]
    write_text(directory / ROWS, json_lines(rows))
    write_json(directory / HEADER, {"corpus": corpus_mark(pairs), "pairs": len(rows), "policy": margins.policy})


def read_margins(run: Run) -> Margins:
    """Read the margins of `needs.margins`. Raise ArtifactError if they are not those of this run's training pairs."""
    directory = Path(run.needs["margins"])
    pairs = run.corpus.train
    header = read_json(directory / HEADER)
    if header is None:
        raise ArtifactError(
            f"needs.margins={directory} has no {HEADER}; name a run of algorithm=crossfit, or its recipe"
        )
    if header["corpus"] != corpus_mark(pairs):
        raise ArtifactError(
            f"needs.margins={directory} has margins of {header['pairs']} other pairs, not of the {len(pairs)} training "
            f"pairs of data={run.corpus.name}: texts, labels or order differ; cross-fit these pairs, e.g. "
            "needs.margins=pair_margins"
        )
    # Positions must be complete and in order, because margins are matched to pairs by position.
    rows = read_jsonl(directory / ROWS)
    if [row["pair"] for row in rows] != list(range(len(pairs))):
        raise ArtifactError(
            f"{directory / ROWS} is damaged: it has {len(rows)} rows for {len(pairs)} pairs; run its stage again"
        )

    def column(name: str) -> FloatArray:
        return np.array([row[name] for row in rows], dtype=np.float64).T

    fold_N = np.array([row["fold"] for row in rows], dtype=np.int64)
    return Margins(fold_N, column("margin"), column("in_sample"), column("ref_gap"), header["policy"])


def training_pairs(settings: PairSettings, run: Run) -> list[Pair]:
    """Return the training pairs of the corpus that `settings` selects, in corpus order."""
    corpus = run.corpus.train
    chosen = chosen_pairs(settings, run)
    if len(chosen) < len(corpus):
        limit = f"max_pairs={settings.max_pairs}, " if settings.max_pairs else ""
        how = f"selection.by={settings.selection.by}, keep={settings.selection.keep:g}"
        run.note(f"trains on {len(chosen)} of {len(corpus)} corpus pairs: {limit}{how}")
    return [corpus[i] for i in chosen]


def chosen_pairs(settings: PairSettings, run: Run) -> IntArray:
    """Return the positions of the training pairs: a random `max_pairs` first, then `selection` among these."""
    count = len(run.corpus.train)
    size = min(settings.max_pairs or count, count)
    available = random_subset(count, size, run.seed("selection/available"))
    return select(settings.selection, run, available, beta=getattr(settings, "beta", None))


def select(selection: Selection, run: Run, available: IntArray, *, beta: float | None = None) -> IntArray:
    """Return the positions among `available` that `selection` keeps.

    Args:
        beta: β of the DPO objective, for `by=difficulty`.
    """
    if selection.by == "all":
        return available
    size = shard_size(len(available), selection.keep)
    if selection.by == "random":
        return available[random_subset(len(available), size, run.seed("selection/random"))]
    margins = read_margins(run)
    margin_N = margins.of(selection.source, selection.cycle)[available]
    if selection.by == "difficulty":
        return available[_select_learnable(margin_N, margins, available, run, size, beta)]
    rank_by_N = margin_N if selection.by == "agreement" else np.abs(margin_N)
    selected = top_fraction(rank_by_N, selection.keep, margins.fold_N[available])
    if selection.by == "length_matched":  # control: same count and same lengths, but without regard to the margins
        words_N = words_difference([run.corpus.train[i] for i in available])
        selected = length_matched(words_N, selected, run.seed("selection/length_matched"))
    return available[selected]


def _select_learnable(
    margin_N: FloatArray, margins: Margins, available: IntArray, run: Run, size: int, beta: float | None
) -> IntArray:
    """Return the positions of pairs that DPO can learn at β (`headroom` > 0), at most the `size` largest."""
    assert beta is not None, "difficulty needs the β of the objective"
    if margins.policy != run.needs["policy"]:
        # Headroom compares margins with log-ratios of the reference, so another policy makes it approximate.
        run.note(f"selection.by=difficulty: log-ratios are of {margins.policy}, the reference is {run.needs['policy']}")
    headroom_N = headroom(margin_N, margins.ref_gap_N[available], beta=beta)
    learnable = int((headroom_N > 0).sum())
    largest = np.argsort(-headroom_N, kind="stable")[: min(size, learnable)]
    if not len(largest):
        raise DataError(f"no pair can be learnt at algorithm.beta={beta}; lower beta, or use selection.by=margin")
    return np.sort(largest)


def selection_metrics(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return number, lengths and label accuracy of the selected pairs; errors are clustered by prompt (metrics.py)."""
    prompts = prompt_ids(pairs)
    words_N = words_difference(pairs)
    metrics: dict[str, Any] = {
        "selection/pairs": len(pairs),
        "selection/words": clustered_mean(words_N, prompts),
        "selection/longer_chosen": clustered_mean(win_or_tie(words_N), prompts),
    }
    right_N = label_right(pairs)
    if right_N is not None:
        metrics["selection/label_accuracy"] = clustered_mean(right_N, prompts)
    return metrics


def label_right(pairs: Sequence[Pair]) -> FloatArray | None:
    """Return 1 where gold ranks a pair as labelled, ½ for a tie, else 0, (N,); None if gold is unknown."""
    if not all("gold_chosen" in pair.meta for pair in pairs):
        return None
    differences = [pair.meta["gold_chosen"] - pair.meta["gold_rejected"] for pair in pairs]
    return win_or_tie(differences)


def words_difference(pairs: Sequence[Pair]) -> FloatArray:
    """Return the word count of the chosen minus that of the rejected response, (N,)."""
    chosen_N, rejected_N = pair_words(pairs)
    return chosen_N - rejected_N
