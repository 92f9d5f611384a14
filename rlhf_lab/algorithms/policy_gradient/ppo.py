"""PPO with a critic: a value per token, generalised advantage estimation, clipped policy and value losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_lab.algorithms.policy_gradient.on_policy import OnPolicy
from rlhf_lab.algorithms.policy_gradient.settings import PPO
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.losses.advantage import gae
from rlhf_lab.losses.policy import explained_variance, value_loss
from rlhf_lab.models.build import load_encoder, load_policy, load_reward_model
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import note_linear_head, response_states
from rlhf_lab.models.lora import trainable
from rlhf_lab.models.sharded import blocks_dtype, compute_in, within
from rlhf_lab.models.shared_prompt import hidden_states
from rlhf_lab.rewards.learned.bt import ScoreScale
from rlhf_lab.sampling.experience import EpisodeGroup, Experience, Imitation, Micro
from rlhf_lab.training.loop import LossOutput
from rlhf_lab.training.optim import TrainedPart
from rlhf_lab.training.run import Run


class Critic(nn.Module):
    """A linear head with bias on hidden states of a separate trunk, or of the policy's trunk (`trunk=None`).

    Args:
        width: size of the hidden states.
        trunk: model that computes the hidden states; None if the policy does.
        device: device of the head.
    """

    def __init__(self, width: int, trunk: nn.Module | None, device: torch.device):
        super().__init__()
        self.trunk = trunk
        # nn.Linear samples random weights, which are zeroed below. The fork keeps the CPU's random state unchanged. On
        # the meta device nothing is sampled.
        with torch.random.fork_rng(devices=[]):
            self.head = nn.Linear(width, 1, device=device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x_Nd: Tensor) -> Tensor:
        """Return the values of hidden states, (N,), in float32 even under autocast."""
        return within(self, self._apply_head, x_Nd)

    def _apply_head(self, x_Nd: Tensor) -> Tensor:
        with torch.autocast(x_Nd.device.type, enabled=False):
            return self.head(x_Nd.float())[:, 0]

    def values(self, batch: TokenBatch) -> Tensor:
        """Return the values before the response tokens of a batch, (N,), computed with the critic's own trunk."""
        assert self.trunk is not None, "a shared critic gets the policy's hidden states"
        return within(self, self._batch_values, batch)

    def _batch_values(self, batch: TokenBatch) -> Tensor:
        row_N, column_N = batch.targets()
        assert self.trunk is not None
        return self(hidden_states(self.trunk, batch, row_N, column_N))


def build_critic(
    kind: str, run: Run, policy: nn.Module, vocabulary: Mapping[str, int], scale: tuple[float, float]
) -> Critic:
    """Build a critic of `kind` (see `PPO.critic` in `algorithms/policy_gradient/settings.py`).

    Args:
        kind: `shared`, `zero` or `reward_model`.
        policy: policy whose trunk a shared critic uses.
        vocabulary: vocabulary of the policy's tokenizer.
        scale: mean and sd that the reward uses to standardise scores. A critic that starts from the reward model
            predicts standardised scores from the start.
    """
    settings = run.config.model
    width = policy.get_output_embeddings().weight.shape[1]  # type: ignore[operator]
    if kind == "shared":
        if not note_linear_head(policy):
            raise ConfigError("algorithm.critic=shared needs a plain linear output head; use algorithm.critic=zero")
        return Critic(width, None, _device(policy))
    lora_seed = run.seed("critic/lora")
    if kind == "zero":
        source: Any
        if run.base:
            source = run.base.language_model()
        else:
            source = load_policy(run.needs["policy"], settings, device=run.load_device, trained=True)
        return _critic_on(trainable(source, settings.lora, lora_seed), width)
    if "reward" not in run.needs:
        raise ConfigError("algorithm.critic=reward_model needs needs.reward; use algorithm.critic=zero")
    if load_encoder(run.needs["reward"], settings).tokenizer.get_vocab() != vocabulary:
        raise ConfigError(
            f"algorithm.critic=reward_model: the vocabulary of {run.needs['reward']} differs from that of the policy, "
            "whose tokens the critic reads; use algorithm.critic=zero"
        )
    # A reward model with several outputs scores with their weighted sum, so the critic starts as that sum.
    attributes = ScoreScale.read(run.needs["reward"]).weights or (1.0,)
    source = load_reward_model(
        run.needs["reward"], settings, outputs=len(attributes), device=run.load_device, trained=True, base=run.base
    )
    score_Ad = source.score.weight
    critic = _critic_on(trainable(source, settings.lora, lora_seed), score_Ad.shape[1])
    mean, sd = scale
    # The standardised score (w·x − mean)/sd is itself a linear head.
    with torch.no_grad():
        weight_1d = score_Ad.new_tensor([attributes]) @ score_Ad
        critic.head.weight.copy_(weight_1d / sd)
        critic.head.bias.fill_(-mean / sd)
    return critic


def _critic_on(model: Any, width: int) -> Critic:
    critic = Critic(width, model.base_model, _device(model))
    dtype = blocks_dtype(model)
    if dtype:
        compute_in(critic, dtype)
    return critic


def _device(model: nn.Module) -> torch.device:
    """Return the device of a model's parameters; meta if only the main process has their values."""
    return next(model.parameters()).device


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
        reward_RT, value_RT = experience.padded(reward_N), experience.padded(value_N)
        length_R = torch.tensor(experience.sampled_lengths)
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
