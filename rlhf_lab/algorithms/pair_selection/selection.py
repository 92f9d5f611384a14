"""Which pairs of the corpus a stage trains on, and what they are like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from rlhf_lab.algorithms.pair_selection.margins import Margins, read_margins
from rlhf_lab.algorithms.pair_selection.rules import (
    IntArray,
    headroom,
    length_matched,
    random_subset,
    share_size,
    top_share,
)
from rlhf_lab.algorithms.pair_selection.settings import Selection
from rlhf_lab.core.errors import DataError
from rlhf_lab.core.types import FloatArray, Pair
from rlhf_lab.evaluations.reward_audit import pair_words, prompt_ids
from rlhf_lab.statistics.inference import clustered_mean
from rlhf_lab.training.run import Run


class ChoosesPairs(Protocol):
    """Settings of a stage that trains on some of the corpus pairs."""

    @property
    def max_pairs(self) -> int: ...

    @property
    def selection(self) -> Selection: ...


def training_pairs(settings: ChoosesPairs, run: Run) -> list[Pair]:
    """The corpus's training pairs that `settings` asks for, in corpus order."""
    corpus, chosen = run.corpus.train, chosen_pairs(settings, run)
    if len(chosen) < len(corpus):
        limit = f"max_pairs={settings.max_pairs}, " if settings.max_pairs else ""
        how = f"selection.by={settings.selection.by}, keep={settings.selection.keep:g}"
        run.note(f"trains on {len(chosen)} of {len(corpus)} corpus pairs: {limit}{how}")
    return [corpus[i] for i in chosen]


def chosen_pairs(settings: ChoosesPairs, run: Run) -> IntArray:
    """Positions of the pairs to train on: `max_pairs` first, drawn at random, then `selection` among them."""
    count = len(run.corpus.train)
    size = min(settings.max_pairs or count, count)
    available = random_subset(count, size, run.seed("selection/available"))
    return select(settings.selection, run, available, beta=getattr(settings, "beta", None))


def select(selection: Selection, run: Run, available: IntArray, *, beta: float | None = None) -> IntArray:
    """Positions among `available` that `selection` keeps.

    Args:
        beta: β of the DPO objective, for `by=difficulty`.
    """
    if selection.by == "all":
        return available
    size = share_size(len(available), selection.keep)
    if selection.by == "random":
        return available[random_subset(len(available), size, run.seed("selection/random"))]
    found = read_margins(run)
    margin_N, fold_N = found.of(selection.source, selection.cycle)[available], found.fold_N[available]
    if selection.by == "difficulty":
        return available[_learnable(margin_N, found, available, run, size, beta)]
    surest = top_share(margin_N if selection.by == "agreement" else np.abs(margin_N), selection.keep, fold_N)
    if selection.by == "length_matched":
        words_N = words_difference([run.corpus.train[i] for i in available])
        surest = length_matched(words_N, surest, run.seed("selection/length_matched"))
    return available[surest]


def _learnable(
    margin_N: FloatArray, found: Margins, available: IntArray, run: Run, size: int, beta: float | None
) -> IntArray:
    """Positions of the pairs with headroom at β, at most `size`, largest headroom first."""
    assert beta is not None, "difficulty is relative to β"
    if found.policy != run.needs["policy"]:
        run.note(f"selection.by=difficulty: log-ratios are of {found.policy}, the reference is {run.needs['policy']}")
    left_N = headroom(margin_N, found.ref_gap_N[available], beta=beta)
    order = np.argsort(-left_N, kind="stable")[: min(size, int((left_N > 0).sum()))]
    if not len(order):
        raise DataError(f"no pair can be learnt at algorithm.beta={beta}; lower it, or use selection.by=margin")
    return np.sort(order)


def selection_metrics(settings: ChoosesPairs, run: Run) -> dict[str, Any]:
    """What the chosen pairs are like, as estimates clustered by prompt; see metrics.py."""
    pairs = [run.corpus.train[i] for i in chosen_pairs(settings, run)]
    prompts, words_N = prompt_ids(pairs), words_difference(pairs)
    found: dict[str, Any] = {
        "selection/pairs": len(pairs),
        "selection/words": clustered_mean(words_N, prompts),
        "selection/longer_chosen": clustered_mean(np.sign(words_N) / 2 + 0.5, prompts),
    }
    right_N = label_right(pairs)
    if right_N is not None:
        found["selection/label_accuracy"] = clustered_mean(right_N, prompts)
    return found


def label_right(pairs: Sequence[Pair]) -> FloatArray | None:
    """1 where the true reward orders a pair as labelled, ½ on a tie, else 0, (N,); None where it is not known."""
    if not all("gold_chosen" in pair.meta for pair in pairs):
        return None
    gold_N = np.array([pair.meta["gold_chosen"] - pair.meta["gold_rejected"] for pair in pairs])
    return np.sign(gold_N) / 2 + 0.5


def words_difference(pairs: Sequence[Pair]) -> FloatArray:
    """Words of the chosen reply − words of the rejected, (N,)."""
    chosen_N, rejected_N = pair_words(pairs)
    return chosen_N - rejected_N
