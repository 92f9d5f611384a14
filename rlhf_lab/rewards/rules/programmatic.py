"""Length and hollow affirmations as a reward: a rule instead of a model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.types import RewardBatch
from rlhf_lab.rewards.rules.settings import Programmatic
from rlhf_lab.training.run import Run

SHORT, LONG = 150, 300
"""Thresholds of the original rule in tokens."""
LIMIT = 256
"""Maximum tokens of a response for which the thresholds were chosen; they scale with the actual maximum."""


class ProgrammaticReward:
    def __init__(self, settings: Programmatic, short_words: float, long_words: float):
        self.settings = settings
        self.short_words = short_words
        self.long_words = long_words

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        """Score responses. Parts: `short` rates the length in [0, 1], `affirms` is 1 for a hollow opening."""
        words = np.array([len(text.split()) for text in responses], dtype=np.float64)
        affirms = np.array([self.settings.affirms(text) for text in responses], dtype=np.float64)
        if self.settings.mode == "binary":
            short = (words <= self.short_words).astype(np.float64)
            return RewardBatch(short * (1 - affirms), {"short": short, "affirms": affirms})
        # 1 up to `short_words` words, falling linearly to 0 at `long_words`
        short = np.clip((self.long_words - words) / (self.long_words - self.short_words), 0.0, 1.0)
        return RewardBatch(short * (1 - 0.5 * affirms), {"short": short, "affirms": affirms})


def build(settings: Programmatic, run: Run) -> ProgrammaticReward:
    """Return the reward of the settings. Raise ConfigError if the thresholds are in the wrong order."""
    # The thresholds keep their ratio to the maximum length of a response.
    limit = run.config.rollout.max_new_tokens
    short = SHORT / LIMIT * limit if settings.short_words is None else settings.short_words
    long = short * LONG / SHORT if settings.long_words is None else settings.long_words
    if long <= short:
        raise ConfigError(
            f"reward=programmatic falls from short_words={short:g} to long_words={long:g}, which must be larger; "
            f"short_words is {short / limit:.2f} of rollout.max_new_tokens={limit} when it is not set"
        )
    return ProgrammaticReward(settings, short, long)
