"""The intelligibility guard: minus the phone error rate that a recogniser hears in the decoded audio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rlhf_lab.core.episodes import Episode
from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.media import Renderer
from rlhf_lab.core.types import FloatArray, RewardBatch
from rlhf_lab.packs.speech.rewards.clips import renderer_of
from rlhf_lab.packs.speech.rewards.settings import Intelligibility
from rlhf_lab.packs.speech.sound.recogniser import Recogniser
from rlhf_lab.training.run import Run

RECOGNISER_FILE = "recogniser.npz"
"""What `algorithm=recogniser` writes into its directory."""


class IntelligibilityReward:
    """See `Intelligibility`."""

    def __init__(self, renderer: Renderer, recogniser: Recogniser):
        self.renderer, self.recogniser = renderer, recogniser

    def score_episodes(self, episodes: Sequence[Episode]) -> RewardBatch:
        wanted = [wanted_phones(episode.task.facts, episode.task.prompt) for episode in episodes]
        return RewardBatch(-phone_errors(self.recogniser, self.renderer, [e.response for e in episodes], wanted))


def phone_errors(
    recogniser: Recogniser, renderer: Renderer, responses: Sequence[str], wanted: Sequence[Sequence[str]]
) -> FloatArray:
    """The phone error rate of each reply, (N,), at most 1: a clip of other phones is as bad as silence. Audio without
    samples has 1."""
    asked = list(dict.fromkeys(zip(responses, map(tuple, wanted), strict=True)))
    clips = renderer.render([response for response, _ in asked])
    heard = [i for i, clip in enumerate(clips) if len(clip.samples_N)]
    errors_M = np.ones(len(asked))
    if heard:
        compared = recogniser.compare([clips[i] for i in heard], [asked[i][1] for i in heard])
        errors_M[heard] = np.minimum(compared.phone_error_N, 1.0)
    error_of = dict(zip(asked, errors_M.tolist(), strict=True))
    return np.array([error_of[pair] for pair in zip(responses, map(tuple, wanted), strict=True)], dtype=np.float64)


def wanted_phones(facts: Mapping[str, object], prompt: str) -> list[str]:
    """What a clip has to say: the letters of the column `text`, a phone each. Raises DataError without it."""
    text = facts.get("text")
    if not isinstance(text, str) or not text.strip():
        raise DataError(
            f"reward=intelligibility: the row of {prompt!r} has no column text; expected what is to be said, a letter "
            "for each phone, such as 'ta ko ma ne'"
        )
    return [letter for letter in text if not letter.isspace()]


def load_recogniser(source: str) -> Recogniser:
    """The recogniser that a stage wrote. Raises ConfigError where the folder holds something else."""
    path = Path(source) / RECOGNISER_FILE
    if not path.is_file():
        raise ConfigError(
            f"needs.recogniser={source} has no {RECOGNISER_FILE}; name the folder of a run of algorithm=recogniser, or "
            "the recipe tts_recogniser"
        )
    return Recogniser.load(path)


def build(settings: Intelligibility, run: Run) -> IntelligibilityReward:
    del settings  # the graph reads floor and below
    renderer = renderer_of(run, "reward=intelligibility")
    return IntelligibilityReward(renderer, load_recogniser(run.needs["recogniser"]))
