"""PPO with a critic: a value per token, generalised advantage estimation, clipped policy and value losses."""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf_lab.algorithms.policy_gradient.critic import Critic, build_critic
from rlhf_lab.algorithms.policy_gradient.on_policy import OnPolicy
from rlhf_lab.algorithms.policy_gradient.settings import PPO
from rlhf_lab.losses.advantage import gae
from rlhf_lab.losses.policy import explained_variance, value_loss
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import response_states
from rlhf_lab.rewards.learned.bt import ScoreScale
from rlhf_lab.sampling.experience import EpisodeGroup, Experience, Imitation, Micro
from rlhf_lab.training.loop import LossOutput
from rlhf_lab.training.optim import TrainedPart
from rlhf_lab.training.run import Run


class ProximalPolicyOptimisation(OnPolicy):
    """PPO with a policy and a critic. The critic is a separate optimiser part even if it shares the policy's trunk."""

    settings: PPO
    title = "PPO"

    def __init__(self, settings: PPO, run: Run):
        super().__init__(settings, run)
        self.shared = settings.critic == "shared"
        # A critic from the reward model has to predict standardised scores, so it needs the scale of the reward.
        scale = ScoreScale.read(run.needs["reward"]) if "reward" in run.needs else ScoreScale()
        self.critic: Critic = build_critic(
            settings.critic or "zero", run, self.model, self.encoder.tokenizer.get_vocab(), (scale.mean, scale.sd)
        )

    @property
    def warmup_iterations(self) -> int:
        """Number of iterations in which only the critic learns, because its first values give poor advantages."""
        return self.settings.critic_warmup

    def parts(self) -> dict[str, TrainedPart]:
        return {**super().parts(), "critic": TrainedPart(self.critic, self.settings.critic_lr)}

    def credit(self, groups: list[EpisodeGroup], experience: Experience, scores_R: Tensor, penalty_N: Tensor) -> None:
        """Compute advantages and returns by GAE from token rewards: −β·k1, plus the score at the last token.

        If turns are scored separately, the reward of a turn is assigned to its own last token. Tokens of an environment
        are not actions, so GAE treats the sampled tokens of an episode as consecutive.
        """
        reward_N = -penalty_N
        last_scores_R = scores_R.float()
        if "early" in experience.tokens:
            early_N = experience.tokens["early"]
            reward_N = reward_N + early_N
            # The last token gets only the rest of the score, so that the sum over tokens stays the score.
            last_scores_R = last_scores_R - experience.row_sums(early_N)
        reward_N[experience.last()] += last_scores_R
        value_N = self._state_values(experience)
        lam, value_lam = self.settings.lam, self.settings.value_lam
        advantage_N = self._gae(experience, reward_N, value_N, lam)
        return_N = advantage_N + value_N
        if value_lam != lam:  # decoupled GAE: the critic's returns use a separate λ
            return_N = self._gae(experience, reward_N, value_N, value_lam) + value_N
        experience.tokens |= {"advantage": advantage_N, "value": value_N, "return": return_N}

    def _gae(self, experience: Experience, reward_N: Tensor, value_N: Tensor, lam: float) -> Tensor:
        # GAE needs one row per episode, (R, T); the mask returns to concatenated tokens, (N,).
        length_R = torch.tensor(experience.sampled_lengths)
        reward_RT = experience.padded(reward_N)
        value_RT = experience.padded(value_N)
        advantage_RT = gae(reward_RT, value_RT, length_R, gamma=self.settings.gamma, lam=lam)
        return advantage_RT[experience.mask()]

    def _penalise_and_credit(
        self, groups: list[EpisodeGroup], experience: Experience, scores_R: Tensor
    ) -> dict[str, float]:
        metrics = super()._penalise_and_credit(groups, experience, scores_R)
        value_N, return_N = experience.tokens["value"], experience.tokens["return"]
        metrics["value"] = float(value_N.mean())
        metrics["return"] = float(return_N.mean())
        metrics["explained_variance"] = float(explained_variance(value_N, return_N))
        return metrics

    @torch.no_grad()
    def _state_values(self, experience: Experience) -> Tensor:
        """Return V of the state before each response token, (N,)."""
        return self.per_token(experience, self._batch_values)

    def _batch_values(self, batch: TokenBatch) -> Tensor:
        if self.shared:
            return self.critic(response_states(self.model, batch).x_Nd)
        return self.critic.values(batch)

    def loss(self, micro: Micro | Imitation) -> LossOutput:
        if isinstance(micro, Imitation):
            return super().loss(micro)
        # Warm-up skips the policy's forward pass. A shared critic has no warm-up, so its states always exist.
        states = None if self.warming else response_states(self.model, micro.batch)
        shared_states = states if self.shared else None
        value_N = self.critic.values(micro.batch) if shared_states is None else self.critic(shared_states.x_Nd)
        old_value_N, return_N = micro.tokens["value"], micro.tokens["return"]
        value_loss_N = value_loss(value_N, old_value_N, return_N, clip=self.settings.value_clip)
        critic_loss_N = self.settings.value_weight * value_loss_N * micro.weight_N
        if states is None:
            return LossOutput(critic_loss_N, {"value_loss": value_loss_N})
        policy = self.policy_loss(micro, states)
        return LossOutput(policy.loss_N + critic_loss_N, {**policy.metrics, "value_loss": value_loss_N})


def build(settings: PPO, run: Run) -> ProximalPolicyOptimisation:
    return ProximalPolicyOptimisation(settings, run)
