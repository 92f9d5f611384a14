"""Settings of every reward (`reward=…`). Imports no torch; see `rlhf_lab/registry.py`."""

from __future__ import annotations

from dataclasses import dataclass

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
