"""How far labels agree: with the judge, between annotators, and with how sure the judge is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np

from rlhf_lab.packs.judging.labels.items import FIRST, SECOND, TIE, WINNERS
from rlhf_lab.packs.judging.labels.store import Label
from rlhf_lab.packs.judging.statistics.agreement import cohen_kappa
from rlhf_lab.statistics.estimates import Estimate
from rlhf_lab.statistics.inference import clustered_mean, clustered_rate

CONFIDENCES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Bounds of the bins of the judge's confidence; a bin does not hold its lower bound."""


@dataclass(frozen=True)
class Agreement:
    """Two raters of the same items.

    Attributes:
        same: share of items with the same answer: first, second or tie.
        kappa: the same beyond chance; NaN when both always give one and the same answer.
        decided: share with the same winner where neither says tie.
    """

    same: Estimate
    kappa: Estimate
    decided: Estimate


@dataclass(frozen=True)
class Confidence:
    """Items about which the judge is about equally sure.

    Attributes:
        confidence: mean of max(score, 1 − score).
        agreement: share of labels for the side that it prefers; a tie counts half.
    """

    confidence: float
    agreement: Estimate


def agreement(a_N: Sequence[str], b_N: Sequence[str], prompts_N: Sequence[str]) -> Agreement:
    """Agreement of two raters on N items, each answered with first, second or tie."""
    same_N = np.array([a == b for a, b in zip(a_N, b_N, strict=True)], dtype=float)
    decided_N = np.array([TIE not in pair for pair in zip(a_N, b_N, strict=True)], dtype=bool)
    prompts = np.asarray(prompts_N)
    same = clustered_rate(same_N, prompts)
    kappa = cohen_kappa(a_N, b_N, prompts, categories=WINNERS)
    return Agreement(same, kappa, clustered_rate(same_N[decided_N], prompts[decided_N]))


def with_judge(labels: Sequence[Label]) -> Agreement | None:
    """Agreement of labels with the judge of their items; None where no item has one."""
    judged = [label for label in labels if label.item.winner is not None]
    if not judged:
        return None
    said = [str(label.item.winner) for label in judged]
    return agreement([label.winner for label in judged], said, [label.item.prompt_id for label in judged])


def between(a: Sequence[Label], b: Sequence[Label]) -> Agreement | None:
    """Agreement of two annotators on the items that both labelled; None where there are none."""
    answer_of_b = {label.item.id: label.winner for label in b}
    shared = [label for label in a if label.item.id in answer_of_b]
    if not shared:
        return None
    answers_b = [answer_of_b[label.item.id] for label in shared]
    return agreement([label.winner for label in shared], answers_b, [label.item.prompt_id for label in shared])


def calibration(labels: Sequence[Label]) -> list[Confidence]:
    """Whether people agree with the judge the more, the surer it is: from least to most sure."""
    bins = []
    sure = [label for label in labels if label.item.score not in (None, 0.5)]
    confidence_N = np.array([max(score, 1 - score) for label in sure if (score := label.item.score) is not None])
    agreed_N = np.array([_agreed(label) for label in sure])
    prompts_N = np.array([label.item.prompt_id for label in sure])
    for low, high in pairwise(CONFIDENCES):
        inside_N = (confidence_N > low) & (confidence_N <= high)
        if inside_N.any():
            rate = clustered_mean(agreed_N[inside_N], prompts_N[inside_N])
            bins.append(Confidence(float(confidence_N[inside_N].mean()), rate))
    return bins


def _agreed(label: Label) -> float:
    if label.winner == TIE:
        return 0.5
    preferred = FIRST if (label.item.score or 0) > 0.5 else SECOND
    return float(label.winner == preferred)


def left_chosen(labels: Sequence[Label]) -> Estimate:
    """How often the reply shown as number 1 wins, ties apart: the order is drawn, so away from ½ it is the place."""
    decided = [label for label in labels if label.winner != TIE]
    wins = [float(label.winner == label.shown) for label in decided]
    return clustered_rate(wins, [label.item.prompt_id for label in decided])


def by_annotator(labels: Sequence[Label]) -> dict[str, list[Label]]:
    """Labels of each annotator, by name."""
    groups: dict[str, list[Label]] = {}
    for label in labels:
        groups.setdefault(label.annotator, []).append(label)
    return dict(sorted(groups.items()))


def pairs_of_annotators(labels: Sequence[Label]) -> list[tuple[str, str, Agreement]]:
    """Agreement of every two annotators who share an item."""
    found = []
    for (a, labels_a), (b, labels_b) in combinations(by_annotator(labels).items(), 2):
        shared = between(labels_a, labels_b)
        if shared is not None:
            found.append((a, b, shared))
    return found
