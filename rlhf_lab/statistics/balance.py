"""Balance of exploration and exploitation in self-training on accepted samples (B-STaR, arXiv:2412.17256)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def balance_score(right: Sequence[int], selected: Sequence[int], target: int) -> float:
    """Return B-STaR's balance score: the mean over prompts of min(right/target, 1) · right/selected.

    The first factor is exploration, enough right solutions to learn from; the second is exploitation, the fraction of
    the selection that is right. A prompt without a selected solution counts 0.

    Args:
        right: number of distinct right solutions among the selected ones of each prompt.
        selected: number of distinct selected solutions of each prompt.
        target: number of distinct right solutions per prompt that is enough.
    """
    scores = []
    for right_count, selected_count in zip(right, selected, strict=True):
        precision = right_count / selected_count if selected_count else 0.0
        scores.append(min(right_count / target, 1.0) * precision)
    return float(np.mean(scores))
