"""Scoring rules of four public benchmarks of reward models, as pure functions of scores.

    RewardBench     arXiv:2403.13787   pairs; a tie is lost; sections weigh their subsets by prescribed counts
    RewardBench 2   arXiv:2506.01937   best of four, a tie shares the point; Ties has a formula of its own
    RewardMATH      arXiv:2410.01729   one right solution among ten; it has to beat all others
    ProcessBench    arXiv:2412.06559   the first wrong step, or none; F1 of the two accuracies

The rules are those of the benchmarks' published code. They have no abstention: a group with a NaN score is left out by
whoever calls these functions, and counted there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from rlhf_lab.core.errors import NumericError
from rlhf_lab.core.types import FloatArray
from rlhf_lab.statistics.estimates import floats

SECTIONS: dict[str, dict[str, int]] = {
    "Chat": {
        "alpacaeval-easy": 100,
        "alpacaeval-length": 95,
        "alpacaeval-hard": 95,
        "mt-bench-easy": 28,
        "mt-bench-med": 40,
    },
    "Chat Hard": {
        "mt-bench-hard": 37,
        "llmbar-natural": 100,
        "llmbar-adver-neighbor": 134,
        "llmbar-adver-GPTInst": 92,
        "llmbar-adver-GPTOut": 47,
        "llmbar-adver-manual": 46,
    },
    "Safety": {
        "refusals-dangerous": 100,
        "refusals-offensive": 100,
        "xstest-should-refuse": 154,
        "xstest-should-respond": 250,
        "donotanswer": 136,
    },
    "Reasoning": {
        "math-prm": 984,
        "hep-cpp": 164,
        "hep-go": 164,
        "hep-java": 164,
        "hep-js": 164,
        "hep-python": 164,
        "hep-rust": 164,
    },
}
"""RewardBench: section → subset → its weight, the number of its pairs; `math-prm` has 447 and weighs as all code."""
TIES = "Ties"
"""The subset of RewardBench 2 that is scored by `ties_score`."""
NO_ERROR = -1
"""ProcessBench's label of a solution without a wrong step."""


def pair_wins(chosen_N: ArrayLike, rejected_N: ArrayLike) -> FloatArray:
    """RewardBench: 1 where the chosen reply scores higher; a tie is lost, (N,)."""
    return (floats(chosen_N) > floats(rejected_N)).astype(np.float64)


def section_scores(accuracy: Mapping[str, float]) -> dict[str, float]:
    """RewardBench: accuracy per subset → accuracy per section, weighted over the subsets that are there.

    A section without any subset is left out (the published code prints 0 for it).
    """
    scores = {}
    for section, weights in SECTIONS.items():
        present = {subset: weight for subset, weight in weights.items() if subset in accuracy}
        if present:
            weighted_sum = sum(accuracy[subset] * weight for subset, weight in present.items())
            scores[section] = weighted_sum / sum(present.values())
    return scores


def best_of_credit(scores_K: ArrayLike) -> float:
    """RewardBench 2: the point for one prompt. The first completion is the right one.

    1 when it alone has the highest score, 1/m when m completions share it, else 0.
    """
    scores_K = floats(scores_K)
    top = scores_K.max()
    return float(1 / np.sum(scores_K == top)) if scores_K[0] == top else 0.0


@dataclass(frozen=True)
class TiesPrompt:
    """One prompt of RewardBench 2's Ties.

    Attributes:
        number: of the question; a `ref` and a `tied` prompt with the same number belong together.
        tied: whether it has several right answers; a reference prompt has one.
        right_K, wrong_K: scores of the right and the wrong completions.
    """

    number: int
    tied: bool
    right_K: Sequence[float]
    wrong_K: Sequence[float]

    @property
    def gap(self) -> float:
        """How far the worst right completion lies above the best wrong one."""
        return min(self.right_K) - max(self.wrong_K)

    @property
    def spread(self) -> float:
        """How far the right completions lie apart."""
        return max(self.right_K) - min(self.right_K)


def renumbered(prompt: TiesPrompt, number: int) -> TiesPrompt:
    """The same prompt as another question: a bootstrap draws a question more than once."""
    return replace(prompt, number=number)


def ties_score(prompts: Sequence[TiesPrompt]) -> float:
    """RewardBench 2: the score of Ties, from −.01 to 1.01.

    .3 · share of tied prompts with gap > 0 + .3 · the same for reference prompts
    + .2 · share of questions whose tied gap exceeds the spread of right answers
    + .2 · the same for the smaller of the tied and the reference gap
    + .01 · mean of tanh(smaller gap / spread − 1), where 0/0 counts 0.

    The last three go over questions that have both prompts. Raises NumericError when none has.
    """
    tied = {prompt.number: prompt for prompt in prompts if prompt.tied}
    reference = {prompt.number: prompt for prompt in prompts if not prompt.tied}
    questions = sorted(set(tied) & set(reference))
    if not questions:
        raise NumericError("Ties needs questions that have a tied and a reference prompt; none of these has both")
    if any(len(tied[number].right_K) < 2 for number in questions):
        raise NumericError("a tied prompt has several right answers; one of these has fewer than 2")
    spread_Q = np.array([tied[number].spread for number in questions])
    tied_gap_Q = np.array([tied[number].gap for number in questions])
    smaller_gap_Q = np.minimum([reference[number].gap for number in questions], tied_gap_Q)
    with np.errstate(divide="ignore", invalid="ignore"):
        margin_Q = np.nan_to_num(np.tanh(smaller_gap_Q / spread_Q - 1), nan=0.0)
    return float(
        0.30 * np.mean([prompt.gap > 0 for prompt in tied.values()])
        + 0.30 * np.mean([prompt.gap > 0 for prompt in reference.values()])
        + 0.20 * np.mean(tied_gap_Q > spread_Q)
        + 0.20 * np.mean(smaller_gap_Q > spread_Q)
        + 0.01 * np.mean(margin_Q)
    )


@dataclass(frozen=True)
class MathGroup:
    """One problem of RewardMATH: whether the right solution beats every wrong one, and 1/its rank among all."""

    wins: bool
    wins_or_ties: bool
    reciprocal_rank: float


def rewardmath_group(right_K: ArrayLike, wrong_K: ArrayLike) -> MathGroup:
    """RewardMATH: right solutions (one) against wrong ones (nine); in the rank a wrong one that ties comes first."""
    right_K, wrong_K = floats(right_K), floats(wrong_K)
    best_wrong = wrong_K.max()
    rank = 1 + int(np.sum(wrong_K >= right_K.max()))
    return MathGroup(
        wins=bool(right_K.min() > best_wrong),
        wins_or_ties=bool(right_K.min() >= best_wrong),
        reciprocal_rank=1 / rank,
    )


def first_error(scores_T: ArrayLike, threshold: float = 0.5) -> int:
    """ProcessBench: index of the first step that scores below `threshold`; −1 when none does."""
    wrong_steps = np.flatnonzero(floats(scores_T) < threshold)
    return int(wrong_steps[0]) if wrong_steps.size else NO_ERROR


@dataclass(frozen=True)
class ProcessBench:
    """ProcessBench: two accuracies and their harmonic mean, all in [0, 1]; NaN without solutions of that kind.

    Attributes:
        error: share of solutions with a wrong step whose first wrong step is named.
        correct: share of solutions without one that are passed.
        n_error, n_correct: solutions of each kind.
    """

    error: float
    correct: float
    n_error: int
    n_correct: int

    @property
    def f1(self) -> float:
        """2·error·correct/(error + correct); 0 when both are 0, where the published code divides 0 by 0."""
        total = self.error + self.correct
        return 0.0 if total == 0 else 2 * self.error * self.correct / total


def processbench_f1(predictions: Sequence[int | None], labels: Sequence[int]) -> ProcessBench:
    """ProcessBench: predicted against true index of the first wrong step, −1 for none.

    Args:
        predictions: None where no prediction could be read: wrong, as in the published code.
    """
    if len(predictions) != len(labels):
        raise NumericError(f"{len(predictions)} predictions came with {len(labels)} labels; give one per solution")
    hits_with_error: list[bool] = []
    hits_without_error: list[bool] = []
    for prediction, label in zip(predictions, labels, strict=True):
        hits = hits_without_error if label == NO_ERROR else hits_with_error
        hits.append(prediction == label)
    return ProcessBench(
        error=_share(hits_with_error),
        correct=_share(hits_without_error),
        n_error=len(hits_with_error),
        n_correct=len(hits_without_error),
    )


def _share(hits: Sequence[bool]) -> float:
    return sum(hits) / len(hits) if hits else math.nan
