"""Pairs of clips with their features, and what is known of how natural they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlhf_lab.core.arrays import FloatArray
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.media import Renderer
from rlhf_lab.core.types import Oracle, Pair
from rlhf_lab.core.user_code import load_from_file
from rlhf_lab.evaluations.reward_audit import prompt_ids, with_gold
from rlhf_lab.packs.speech.rewards.clips import features_of
from rlhf_lab.packs.speech.sound.features import NAMES
from rlhf_lab.rewards.checked import scores

TRUTH_COLUMNS = ("gold", "mos")
"""Columns of pairs that say how natural their clips are: `gold_chosen` and `gold_rejected`, `mos_chosen`, …"""


@dataclass(frozen=True)
class ClipPairs:
    """P pairs of clips of one split.

    Attributes:
        features_P27: of the chosen and of the rejected clip.
        truth_P2: how natural they are; NaN where nobody knows.
        truth_name: who says so: gold, mos, or the function of `algorithm.mos`; empty where nobody does.
    """

    pairs: Sequence[Pair]
    features_P27: FloatArray
    truth_P2: FloatArray
    truth_name: str

    @property
    def replies(self) -> list[str]:
        """Chosen and rejected reply of each pair in turn, (2P)."""
        return [reply for pair in self.pairs for reply in (pair.chosen, pair.rejected)]

    @property
    def features_N7(self) -> FloatArray:
        """The features of `replies`."""
        return self.features_P27.reshape(-1, len(NAMES))

    @property
    def truth_N(self) -> FloatArray:
        """How natural `replies` are."""
        return self.truth_P2.ravel()

    @property
    def clusters_P(self) -> np.ndarray:
        """The prompt of each pair, as a number."""
        return prompt_ids(self.pairs)

    @property
    def clusters_N(self) -> np.ndarray:
        """The prompt of each of `replies`."""
        return np.repeat(self.clusters_P, 2)


def clip_pairs(pairs: Sequence[Pair], renderer: Renderer, oracle: Oracle | None, mos: str, split: str) -> ClipPairs:
    """Decode and measure both clips of each pair. What is known of them: see `PairwiseReward.mos`."""
    replies = [reply for pair in pairs for reply in (pair.chosen, pair.rejected)]
    features_N7 = features_of(renderer, replies, f"measuring {split} clips")
    pairs = with_gold(pairs, oracle)
    if mos:
        name, truth_N = mos, _predicted(mos, renderer, replies)
    else:
        known = (column for column in TRUTH_COLUMNS if all(f"{column}_chosen" in pair.meta for pair in pairs))
        name = next(known, "")
        sides = ("chosen", "rejected")
        truth_N = np.array([float(pair.meta[f"{name}_{side}"]) if name else np.nan for pair in pairs for side in sides])
    return ClipPairs(pairs, features_N7.reshape(-1, 2, len(NAMES)), truth_N.reshape(-1, 2), name)


def _predicted(function: str, renderer: Renderer, replies: Sequence[str]) -> FloatArray:
    """What a predictor of the user says of the clips of replies, (N,)."""
    where = f"algorithm.mos={function}"
    predict = load_from_file(where, function)
    if not callable(predict):
        raise ConfigError(f"{where} is {type(predict).__name__}, not a function of a list of Audio")
    return scores(predict(renderer.render(replies)), replies, where)
