"""GRPO and its critic-free relatives: a reply's advantage comes from comparing it with others to the same prompt."""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf_lab.algorithms.policy_gradient.on_policy import OnPolicy
from rlhf_lab.algorithms.policy_gradient.settings import GRPO
from rlhf_lab.losses.advantage import GROUP_ADVANTAGES, GroupScores
from rlhf_lab.sampling.experience import Experience, Group
from rlhf_lab.training.run import Run

TITLES = {"grpo": "GRPO", "rloo": "RLOO", "remax": "ReMax", "dr_grpo": "Dr. GRPO", "canon": "CANON"}


class GroupPolicyOptimisation(OnPolicy):
    """`algorithm.advantage` says how a group is compared."""

    settings: GRPO

    def __init__(self, settings: GRPO, run: Run):
        super().__init__(settings, run)
        if settings.policy_loss == "ppo_clip":
            self.title = TITLES[settings.advantage]
        else:  # DAPO, GSPO and CISPO are known by their loss
            self.title = settings.policy_loss.upper()

    def credit(self, groups: list[Group], experience: Experience, scores_R: Tensor, penalty_N: Tensor) -> None:
        """Every token that was sampled in an episode gets the episode's advantage."""
        scores_BG = torch.tensor([group.scores for group in groups])
        scored_BG = scores_BG.isfinite()
        scores_BG[scored_BG] = scores_R - experience.row_sums(penalty_N)
        greedy = [group.greedy for group in groups]
        group_scores = GroupScores(
            scores_BG,
            greedy_B=None if None in greedy else torch.tensor(greedy),
            condition_BG=self._canon_condition(groups),
            inter_weight=self.settings.inter_weight,
        )
        advantage_BG = GROUP_ADVANTAGES[self.settings.advantage](group_scores)
        length_R = torch.tensor(experience.sampled_lengths)
        experience.tokens["advantage"] = advantage_BG[scored_BG].float().repeat_interleave(length_R)

    def _canon_condition(self, groups: list[Group]) -> Tensor:
        """What CANON splits groups by: reply length, or mean −log π of the reply's tokens (`surprise`), (B, G)."""
        if self.settings.condition == "tokens":
            return torch.tensor([[float(episode.sampled_tokens) for episode in group.episodes] for group in groups])
        return torch.tensor(
            [[-sum(episode.logps) / len(episode.logps) for episode in group.episodes] for group in groups]
        )


def build(settings: GRPO, run: Run) -> GroupPolicyOptimisation:
    return GroupPolicyOptimisation(settings, run)
