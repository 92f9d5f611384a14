"""Intelligibility of a response: the negative phone error rate of a recogniser on the decoded audio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rlhf_lab.core.episodes import Episode
from rlhf_lab.core.errors import DataError
from rlhf_lab.core.media import Renderer
from rlhf_lab.core.types import FloatArray, RewardBatch
from rlhf_lab.packs.speech.rewards.clips import model_file, renderer_of, scored_once
from rlhf_lab.packs.speech.rewards.settings import IntelligibilityTerm
from rlhf_lab.packs.speech.sound.recogniser import Recogniser
from rlhf_lab.training.run import Run

RECOGNISER_FILE = "recogniser.npz"
"""Name of the file that `algorithm=recogniser` writes into its run directory."""


class IntelligibilityReward:
    """Reward term of `IntelligibilityTerm`."""

    def __init__(self, renderer: Renderer, recogniser: Recogniser):
        self.renderer, self.recogniser = renderer, recogniser

    def score_episodes(self, episodes: Sequence[Episode]) -> RewardBatch:
        reference_phones = [target_phones(episode.task.metadata, episode.task.prompt) for episode in episodes]
        responses = [episode.response for episode in episodes]
        return RewardBatch(-phone_errors(self.recogniser, self.renderer, responses, reference_phones))


def phone_errors(
    recogniser: Recogniser, renderer: Renderer, responses: Sequence[str], expected: Sequence[Sequence[str]]
) -> FloatArray:
    """Return the phone error rate of each response, (N,), limited to 1. Audio without samples has 1.

    The limit makes a clip of wrong phones as bad as silence, not worse.
    """

    def errors(requested: list[tuple[str, tuple[str, ...]]]) -> FloatArray:
        clips = renderer.render([response for response, _ in requested])
        # the recogniser needs at least one sample; other clips keep the error 1
        audible = [i for i, clip in enumerate(clips) if len(clip.samples_N)]
        errors_M = np.ones(len(requested))
        if audible:
            compared = recogniser.compare([clips[i] for i in audible], [requested[i][1] for i in audible])
            errors_M[audible] = np.minimum(compared.phone_error_N, 1.0)
        return errors_M

    return scored_once(errors, list(zip(responses, map(tuple, expected), strict=True)))


def target_phones(metadata: Mapping[str, object], prompt: str) -> list[str]:
    """Return the reference phones of a prompt, one per letter of the column `text`.

    Raises DataError if it is missing.
    """
    text = metadata.get("text")
    if not isinstance(text, str) or not text.strip():
        raise DataError(
            f"reward=intelligibility: the row of {prompt!r} has no column text; expected the text to speak with one "
            "letter per phone, such as 'ta ko ma ne'"
        )
    return [letter for letter in text if not letter.isspace()]


def build(settings: IntelligibilityTerm, run: Run) -> IntelligibilityReward:
    del settings  # the reward graph applies `floor` and `below`
    renderer = renderer_of(run, "reward=intelligibility")
    made_by = "algorithm=recogniser, or the recipe tts_recogniser"
    file = model_file(run.needs["recogniser"], RECOGNISER_FILE, "recogniser", made_by)
    return IntelligibilityReward(renderer, Recogniser.load(file))
