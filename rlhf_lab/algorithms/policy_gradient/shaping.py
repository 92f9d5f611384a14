"""From what a reward says about a reply to the score that is trained on: end of reply, length, scale, clip."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhf_lab.algorithms.policy_gradient.settings import OnPolicySettings
from rlhf_lab.core.types import FloatArray


class RewardShaper:
    """Applies, in this order: running scale, clip, missing-EOS penalty, DAPO's overlong punishment.

    The running scale divides by the standard deviation of all scores seen, Welford's update batch by batch; the mean is
    not subtracted, so that the sign of a score keeps its meaning (arXiv:2403.17031, detail "reward normalization").
    """

    def __init__(self, settings: OnPolicySettings, max_new_tokens: int):
        self.settings, self.max_new_tokens = settings, max_new_tokens
        self.count, self.mean, self.squares = 0, 0.0, 0.0

    def observe(self, rewards: FloatArray) -> None:
        """Count scores in the running scale; unscored ones do not."""
        known = rewards[np.isfinite(rewards)]
        if not len(known):
            return
        total, delta = self.count + len(known), float(known.mean()) - self.mean
        self.squares += float(((known - known.mean()) ** 2).sum()) + delta**2 * self.count * len(known) / total
        self.mean += delta * len(known) / total
        self.count = total

    @property
    def sd(self) -> float:
        return math.sqrt(self.squares / (self.count - 1)) if self.count > 1 and self.squares > 0 else 1.0

    def __call__(self, rewards: FloatArray, lengths: Sequence[int], ended: Sequence[bool]) -> FloatArray:
        """Scores of replies, each (R,); lengths in tokens. NaN stays NaN."""
        settings, scores = self.settings, rewards.astype(np.float64)
        if settings.reward_scaling == "running_sd":
            scores = scores / self.sd
        if settings.reward_clip:
            scores = np.clip(scores, -settings.reward_clip, settings.reward_clip)
        scores = scores - settings.missing_eos_penalty * ~np.asarray(ended, dtype=bool)
        if settings.overlong_tokens:
            over = np.asarray(lengths) - (self.max_new_tokens - settings.overlong_tokens)
            scores = scores - np.clip(over / settings.overlong_tokens, 0.0, 1.0)
        return scores

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "mean": self.mean, "squares": self.squares}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.mean, self.squares = int(state["count"]), float(state["mean"]), float(state["squares"])
