"""Selection of the corpus pairs that a stage trains on, and metrics that describe them."""

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
    shard_size,
    top_fraction,
)
from rlhf_lab.algorithms.pair_selection.settings import Selection
from rlhf_lab.core.errors import DataError
from rlhf_lab.core.types import FloatArray, Pair
from rlhf_lab.evaluations.reward_audit import pair_words, prompt_ids
from rlhf_lab.statistics.estimates import win_or_tie
from rlhf_lab.statistics.inference import clustered_mean
from rlhf_lab.training.run import Run


class ChoosesPairs(Protocol):
    """Settings of a stage that trains on a subset of the corpus pairs."""

    @property
    def max_pairs(self) -> int: ...

    @property
    def selection(self) -> Selection: ...


def training_pairs(settings: ChoosesPairs, run: Run) -> list[Pair]:
    """Return the training pairs of the corpus that `settings` selects, in corpus order."""
    corpus = run.corpus.train
    chosen = chosen_pairs(settings, run)
    if len(chosen) < len(corpus):
        limit = f"max_pairs={settings.max_pairs}, " if settings.max_pairs else ""
        how = f"selection.by={settings.selection.by}, keep={settings.selection.keep:g}"
        run.note(f"trains on {len(chosen)} of {len(corpus)} corpus pairs: {limit}{how}")
    return [corpus[i] for i in chosen]


def chosen_pairs(settings: ChoosesPairs, run: Run) -> IntArray:
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
    """Return the positions of pairs that DPO can learn at β (`rules.headroom` > 0), at most the `size` largest."""
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
