"""Settings of the first stages: imitation and the reward model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rlhf_lab.config.registry import register
from rlhf_lab.training.settings import TrainingSettings


@register("algorithm", "sft")
@dataclass(frozen=True)
class SFT(TrainingSettings):
    """Supervised fine-tuning on the chosen replies: causal LM loss on reply tokens only.

    Args:
        skip_garbled: leave out replies that the data source itself marks as corrupted.
    """

    optional_needs: ClassVar[tuple[str, ...]] = ("policy",)
    lr: float = 2e-5
    epochs: float = 3.0
    skip_garbled: bool = True


OTHER_POLICIES = tuple(f"policy_{k}" for k in range(1, 10))
