"""Reward shaping: running scale, clipping, missing-EOS penalty and overlong punishment of response rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhf_lab.algorithms.policy_gradient.settings import OnPolicySettings
from rlhf_lab.core.types import FloatArray


class RewardShaper:
    """Reward shaping, in this order: running scale, clip, missing-EOS penalty, DAPO's overlong punishment.

    The running scale divides by the standard deviation of all scores so far, computed by Welford's algorithm batch by
    batch. The mean is not subtracted, so that a score keeps its sign (arXiv:2403.17031, detail "reward normalization").
    """

    def __init__(self, settings: OnPolicySettings, max_new_tokens: int):
        self.settings, self.max_new_tokens = settings, max_new_tokens
        self.count = 0
        self.mean = 0.0
        self.squares = 0.0  # sum of squared deviations from the mean

    def observe(self, rewards: FloatArray) -> None:
        """Add scores to the running scale; unscored ones are ignored."""
        scored = rewards[np.isfinite(rewards)]
        if not len(scored):
            return
        total = self.count + len(scored)
        delta = float(scored.mean()) - self.mean
        # merges the means and sums of squares of two sets; exact for any batch size
        within_batch = float(((scored - scored.mean()) ** 2).sum())
        self.squares += within_batch + delta**2 * self.count * len(scored) / total
        self.mean += delta * len(scored) / total
        self.count = total

    @property
    def sd(self) -> float:
        """Running standard deviation; 1 until two different scores have been observed."""
        has_spread = self.count > 1 and self.squares > 0
        return math.sqrt(self.squares / (self.count - 1)) if has_spread else 1.0

    @property
    def scale(self) -> float:
        """Divisor of rewards: the running standard deviation or 1."""
        return self.sd if self.settings.reward_scaling == "running_sd" else 1.0

    def __call__(self, rewards: FloatArray, lengths: Sequence[int], finished: Sequence[bool]) -> FloatArray:
        """Return the scores of responses, (R,). `lengths` are tokens of the last turn. NaN stays NaN."""
        settings, scores = self.settings, rewards.astype(np.float64) / self.scale
        if settings.reward_clip:
            scores = np.clip(scores, -settings.reward_clip, settings.reward_clip)
        for penalty_N in self.penalties(lengths, finished).values():
            scores = scores - penalty_N
        return scores

    def penalties(self, lengths: Sequence[int], finished: Sequence[bool]) -> dict[str, FloatArray]:
        """Return the enabled penalties: name → amount subtracted from each scaled reward, (R,)."""
        settings = self.settings
        penalties: dict[str, FloatArray] = {}
        if settings.missing_eos_penalty:
            penalties["missing_eos"] = settings.missing_eos_penalty * ~np.asarray(finished, dtype=bool)
        if settings.overlong_tokens:
            # tokens beyond the start of the interval in which the penalty rises from 0 to 1
            tokens_over = np.asarray(lengths) - (self.max_new_tokens - settings.overlong_tokens)
            penalties["overlong"] = np.clip(tokens_over / settings.overlong_tokens, 0.0, 1.0)
        return penalties

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "mean": self.mean, "squares": self.squares}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = int(state["count"])
        self.mean = float(state["mean"])
        self.squares = float(state["squares"])
