"""Agreement of labels: with the judge, between annotators, and as a function of the judge's confidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np

from rlhf_lab.packs.judging.labels.items import CHOSEN_FIRST, FIRST, SECOND, TIE, LabelItem, other_side, shown_first
from rlhf_lab.packs.judging.labels.store import StoredLabel
from rlhf_lab.packs.judging.statistics.agreement import cohen_kappa
from rlhf_lab.statistics.estimates import Estimate, cluster_labels
from rlhf_lab.statistics.inference import clustered_mean, clustered_rate

CONFIDENCES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Bounds of the bins of the judge's confidence. A bin excludes its lower bound and includes its upper bound."""


@dataclass(frozen=True)
class Agreement:
    """Agreement of two raters of the same items.

    Attributes:
        same: fraction of items with the same answer: first, second or tie.
        kappa: Cohen's κ, agreement beyond chance; NaN if both always give the same single answer.
        decided: fraction with the same winner among items without a tie.
    """

    same: Estimate
    kappa: Estimate
    decided: Estimate


def agreement(a_N: Sequence[str], b_N: Sequence[str], prompts_N: Sequence[str]) -> Agreement:
    """Return the agreement of two raters on N items, each answered with first, second or tie."""
    pairs = list(zip(a_N, b_N, strict=True))
    same_N = np.array([a == b for a, b in pairs], dtype=float)
    decided_N = np.array([TIE not in pair for pair in pairs], dtype=bool)
    prompts = cluster_labels(prompts_N)
    decided = clustered_rate(same_N[decided_N], prompts[decided_N])
    return Agreement(clustered_rate(same_N, prompts), cohen_kappa(a_N, b_N, prompts), decided)


def with_judge(labels: Sequence[StoredLabel]) -> Agreement | None:
    """Return the agreement of labels with the judge of their items; None if no item has a judgement."""
    judged = [label for label in labels if label.item.winner is not None]
    if not judged:
        return None
    of_judge = [_turned(label.item, str(label.item.winner)) for label in judged]
    winners = [_turned(label.item, label.winner) for label in judged]
    return agreement(winners, of_judge, [label.item.prompt_id for label in judged])


def pairwise_agreement(a: Sequence[StoredLabel], b: Sequence[StoredLabel]) -> Agreement | None:
    """Return the agreement of two annotators on the items that both labelled; None if there are none."""
    answer_of_b = {label.item.id: label.winner for label in b}
    shared = [label for label in a if label.item.id in answer_of_b]
    if not shared:
        return None
    answers_b = [_turned(label.item, answer_of_b[label.item.id]) for label in shared]
    answers_a = [_turned(label.item, label.winner) for label in shared]
    return agreement(answers_a, answers_b, [label.item.prompt_id for label in shared])


def _turned(item: LabelItem, winner: str) -> str:
    """Return a winner; for half of the pairs of {chosen, rejected}, seen from the other side.

    The chosen response is always `first`. If winners were counted by that order, the labels of the file would all be
    the same, and κ would be 0 however often people agree with them.
    """
    is_turned = item.names == CHOSEN_FIRST and shown_first(item.id, 0, "") == SECOND
    return other_side(winner) if is_turned and winner != TIE else winner


def calibration(labels: Sequence[StoredLabel]) -> list[tuple[float, Estimate]]:
    """Return (mean of the judge's confidence, fraction of labels for the side that it prefers) per bin of confidence.

    The confidence is max(score, 1 − score). A tie counts half. Bins are in increasing order.
    """
    bins = []
    # a score of 0.5 prefers no side, so there is nothing to agree with
    sure = [label for label in labels if label.item.score not in (None, 0.5)]
    scores = [label.item.score for label in sure if label.item.score is not None]
    confidence_N = np.array([max(score, 1 - score) for score in scores])
    agreed_N = np.array([_agreed(label) for label in sure])
    prompts_N = np.array([label.item.prompt_id for label in sure])
    for low, high in pairwise(CONFIDENCES):
        inside_N = (confidence_N > low) & (confidence_N <= high)
        if inside_N.any():
            rate = clustered_mean(agreed_N[inside_N], prompts_N[inside_N])
            bins.append((float(confidence_N[inside_N].mean()), rate))
    return bins


def _agreed(label: StoredLabel) -> float:
    if label.winner == TIE:
        return 0.5
    # the score is for `first`, so above ½ the judge prefers it
    preferred = FIRST if (label.item.score or 0) > 0.5 else SECOND
    return float(label.winner == preferred)


def left_chosen(labels: Sequence[StoredLabel]) -> Estimate:
    """Return how often the response shown as number 1 wins, without ties. The order is random, so ½ means no bias."""
    decided = [label for label in labels if label.winner != TIE]
    wins = [float(label.winner == label.shown) for label in decided]
    return clustered_rate(wins, [label.item.prompt_id for label in decided])


def by_annotator(labels: Sequence[StoredLabel]) -> dict[str, list[StoredLabel]]:
    """Return the labels of each annotator, sorted by name."""
    names = sorted({label.annotator for label in labels})
    return {name: [label for label in labels if label.annotator == name] for name in names}


def pairs_of_annotators(labels: Sequence[StoredLabel]) -> list[tuple[str, str, Agreement]]:
    """Return the agreement of all pairs of annotators with common items."""
    found = []
    for (a, labels_a), (b, labels_b) in combinations(by_annotator(labels).items(), 2):
        if (shared := pairwise_agreement(labels_a, labels_b)) is not None:
            found.append((a, b, shared))
    return found
