"""Settings of every reward (`reward=…`). Imports no torch; see `rlhf_lab/registry.py`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlhf_lab.errors import require
from rlhf_lab.registry import register


@register("reward", "bt")
@dataclass(frozen=True)
class BradleyTerry:
    """The learned reward model in `needs.reward`, standardised on replies of the policy it was trained from.

    Args:
        batch_tokens: padded tokens per forward pass.
    """

    batch_tokens: int = 16384


@register("reward", "gold")
@dataclass(frozen=True)
class Gold:
    """The world's true reward: the upper bound an experiment can compare a learned reward with."""


@register("reward", "verifier")
@dataclass(frozen=True)
class Verifier:
    """A program that compares a reply's final answer with the data's: reinforcement learning with verifiable rewards
    (arXiv:2411.15124). A prompt without a known answer is unscored.

    Args:
        right, wrong: reward of a reply whose answer is, and is not, the known one; no answer is a wrong one.
        format_bonus: added for every reply that states an answer at all, right or wrong.
        lenient: without "#### N", take what is boxed, else the last number of the reply.
    """

    right: float = 1.0
    wrong: float = 0.0
    format_bonus: float = 0.0
    lenient: bool = False

    def __post_init__(self) -> None:
        values = (self.right, self.wrong, self.format_bonus)
        require(
            (all(map(math.isfinite, values)), f"right, wrong, format_bonus={values}; write finite numbers"),
            (self.right > self.wrong, f"right={self.right} must be above wrong={self.wrong}"),
        )
