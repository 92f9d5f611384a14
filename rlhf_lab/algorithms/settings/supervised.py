"""Settings of the first stages: imitation and the reward model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rlhf_lab.registry import register
from rlhf_lab.train.settings import Rule, TrainingSettings


@register("algorithm", "sft")
@dataclass(frozen=True)
class SFT(TrainingSettings):
    """Supervised fine-tuning on the chosen replies: causal LM loss on reply tokens only.

    Args:
        skip_garbled: leave out replies that the data source itself marks as corrupted.
    """

    optional_needs: ClassVar[tuple[str, ...]] = ("policy",)
    skip_garbled: bool = True


@register("algorithm", "reward_model")
@dataclass(frozen=True)
class RewardModel(TrainingSettings):
    """Bradley-Terry reward model: −log σ(r_chosen − r_rejected − margin), a scalar head on the last real token.

    Starts from the SFT policy (`needs.policy`).

    Args:
        centering: weight of (r_chosen + r_rejected)², which keeps scores near zero (arXiv:2312.09244).
        margin: constant the chosen reply must win by, in reward units (arXiv:2307.09288, eq. 2).
        on_policy_fraction: share of training pairs that are sampled from `needs.policy` and labelled by the data
            source's annotator, so that the model sees the policy's own mistakes. Sources without an annotator use
            the corpus alone, and the run says so.
        members: reward models that are trained side by side, an ensemble (arXiv:2310.02743): each has its own head
            and its own order of the data.
        member_fraction: share of the pairs that each member trains on, drawn for each anew.
    """

    needs_preferences: ClassVar[bool] = True
    uses: ClassVar[tuple[str, ...]] = ("model", "rollout")
    required_needs: ClassVar[tuple[str, ...]] = ("policy",)
    centering: float = 0.001
    margin: float = 0.0
    on_policy_fraction: float = 0.25
    members: int = 1
    member_fraction: float = 1.0

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (self.centering >= 0, f"centering={self.centering} must be 0 or above"),
            (0 <= self.on_policy_fraction < 1, f"on_policy_fraction={self.on_policy_fraction} is outside [0, 1)"),
            (self.members >= 1, f"members={self.members} must be at least 1"),
            (0 < self.member_fraction <= 1, f"member_fraction={self.member_fraction} is outside (0, 1]"),
        )
