"""Settings of supervised fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rlhf_lab.config.registry import register
from rlhf_lab.training.settings import SMALL, TrainingSettings


@register("algorithm", "sft")
@dataclass(frozen=True)
class SFT(TrainingSettings):
    """Supervised fine-tuning on the chosen replies: causal LM loss on reply tokens only.

    Args:
        skip_garbled: leave out replies that the data source itself marks as corrupted.
    """

    needs_demonstrations: ClassVar[bool] = True
    optional_needs: ClassVar[tuple[str, ...]] = ("policy",)
    loss_falls: ClassVar[bool] = True
    answer: ClassVar[str] = "held_out_loss"
    at_small_scale: ClassVar[dict[str, Any]] = {
        **SMALL,
        "lr": 2e-2,
        "muon_lr": 1e-2,
        "epochs": 2.0,
        "batch_size": 16,
    }
    lr: float = 2e-5
    epochs: float = 3.0
    skip_garbled: bool = True
