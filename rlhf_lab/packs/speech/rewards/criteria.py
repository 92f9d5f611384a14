"""Criteria of clips for reward designs (`rewards/criteria/`): the acoustic features."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_lab.core.arrays import FloatArray
from rlhf_lab.core.types import Corpus
from rlhf_lab.packs.speech.rewards.clips import features_of
from rlhf_lab.packs.speech.rewards.settings import FEATURES, HAND_WEIGHTS
from rlhf_lab.packs.speech.sound.features import fill_undefined
from rlhf_lab.rewards.criteria.sets import CriteriaSet

SPEECH = {name: HAND_WEIGHTS.get(name, 0.0) for name in FEATURES}
"""Acoustic features of the decoded clip, with the weights of `reward=acoustic`."""


def criteria_of(corpus: Corpus) -> CriteriaSet | None:
    """Return the criteria of clips; None if responses are text."""
    renderer = corpus.renderer
    if renderer is None:
        return None

    def features(prompts: Sequence[str], responses: Sequence[str]) -> FloatArray:
        del prompts  # only the sound of a clip is scored, independent of the prompt
        return fill_undefined(features_of(renderer, responses))

    return CriteriaSet("speech", SPEECH, features)
