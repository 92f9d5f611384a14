"""GRPO and related critic-free methods: the advantage of a response compares it with others for the same prompt."""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf_lab.algorithms.policy_gradient.on_policy import OnPolicy
from rlhf_lab.algorithms.policy_gradient.settings import GRPO
from rlhf_lab.losses.advantage import GROUP_ADVANTAGES, GroupScores
from rlhf_lab.sampling.experience import EpisodeGroup, Experience
from rlhf_lab.training.run import Run

TITLES = {"grpo": "GRPO", "rloo": "RLOO", "remax": "ReMax", "dr_grpo": "Dr. GRPO", "canon": "CANON"}


class GroupPolicyOptimisation(OnPolicy):
    """Critic-free policy optimisation. `algorithm.advantage` selects how responses of a group are compared."""

    settings: GRPO

    def __init__(self, settings: GRPO, run: Run):
        super().__init__(settings, run)
        if settings.policy_loss == "ppo_clip":
            self.title = TITLES[settings.advantage]
        else:  # the literature names DAPO, GSPO and CISPO after their loss
            self.title = settings.policy_loss.upper()

    def credit(self, groups: list[EpisodeGroup], experience: Experience, scores_R: Tensor, penalty_N: Tensor) -> None:
        """Assign the advantage of an episode to all of its sampled tokens."""
        scores_BG = torch.tensor([group.scores for group in groups])
        scored_BG = scores_BG.isfinite()
        # The KL penalty is part of the score before groups are compared; it is 0 if kl_in=loss.
        scores_BG[scored_BG] = scores_R - experience.row_sums(penalty_N)
        greedy = [group.greedy for group in groups]
        group_scores = GroupScores(
            scores_BG,
            greedy_B=None if None in greedy else torch.tensor(greedy),
            lengths_BG=torch.tensor([[float(one.sampled_tokens) for one in group.episodes] for group in groups]),
            inter_weight=self.settings.inter_weight,
        )
        advantage_BG = GROUP_ADVANTAGES[self.settings.advantage](group_scores)
        length_R = torch.tensor(experience.sampled_lengths)
        experience.tokens["advantage"] = advantage_BG[scored_BG].float().repeat_interleave(length_R)


def build(settings: GRPO, run: Run) -> GroupPolicyOptimisation:
    return GroupPolicyOptimisation(settings, run)
