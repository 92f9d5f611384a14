"""Pairs of clips with their features and, if known, their naturalness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlhf_lab.core.arrays import FloatArray
from rlhf_lab.core.errors import DataError
from rlhf_lab.core.media import Renderer
from rlhf_lab.core.types import Oracle, Pair
from rlhf_lab.evaluations.reward_audit import prompt_ids, with_gold
from rlhf_lab.packs.speech.rewards.clips import features_of
from rlhf_lab.packs.speech.rewards.opinion_scores import opinion_scores
from rlhf_lab.packs.speech.sound.features import NAMES

TRUTH_COLUMNS = ("gold", "mos")
"""Prefixes of the pair columns that contain naturalness: `gold_chosen` and `gold_rejected`, `mos_chosen`, …"""


@dataclass(frozen=True)
class ClipPairs:
    """P pairs of clips of one split.

    Attributes:
        features_P27: features of the chosen and of the rejected clip of each pair.
        truth_P2: naturalness of both clips; NaN if unknown.
        truth_name: source of the naturalness: gold, mos, or the value of `algorithm.mos`; empty if unknown.
    """

    pairs: Sequence[Pair]
    features_P27: FloatArray
    truth_P2: FloatArray
    truth_name: str

    @property
    def responses(self) -> list[str]:
        """Responses of all pairs, chosen and rejected in turn, (2P)."""
        return [response for pair in self.pairs for response in (pair.chosen, pair.rejected)]

    @property
    def features_N7(self) -> FloatArray:
        """Features of `responses`, (2P, 7)."""
        return self.features_P27.reshape(-1, len(NAMES))

    @property
    def truth_N(self) -> FloatArray:
        """Naturalness of `responses`, (2P,)."""
        return self.truth_P2.ravel()

    @property
    def clusters_P(self) -> np.ndarray:
        """Index of the prompt of each pair, (P,)."""
        return prompt_ids(self.pairs)

    @property
    def clusters_N(self) -> np.ndarray:
        """Index of the prompt of each of `responses`, (2P,)."""
        return np.repeat(self.clusters_P, 2)


def clip_pairs(pairs: Sequence[Pair], renderer: Renderer, oracle: Oracle | None, mos: str, split: str) -> ClipPairs:
    """Decode and measure both clips of each pair. `PairwiseReward.mos` describes the sources of naturalness.

    Raises DataError if the predictor of opinion scores scores no clip.
    """
    responses = [response for pair in pairs for response in (pair.chosen, pair.rejected)]
    features_N7 = features_of(renderer, responses, f"measuring {split} clips")
    # adds gold columns if the data have a true reward
    pairs = with_gold(pairs, oracle)
    if mos:
        name, truth_N = mos, opinion_scores(mos, renderer, responses)
        if np.isnan(truth_N).all():
            raise DataError(
                f"algorithm.mos={mos} scored none of the {len(responses)} {split} clips; return a number for each clip"
            )
    else:
        # a column is used only if all pairs have it
        known = (column for column in TRUTH_COLUMNS if all(f"{column}_chosen" in pair.meta for pair in pairs))
        name = next(known, "")
        sides = ("chosen", "rejected")
        if name:
            truth_N = np.array([float(pair.meta[f"{name}_{side}"]) for pair in pairs for side in sides])
        else:
            truth_N = np.full(len(pairs) * len(sides), np.nan)
    return ClipPairs(pairs, features_N7.reshape(-1, 2, len(NAMES)), truth_N.reshape(-1, 2), name)
