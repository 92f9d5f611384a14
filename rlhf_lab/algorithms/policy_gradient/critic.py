"""The critic of PPO: a value for the state before each response token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.models.build import load_encoder, load_policy, load_reward_model
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import note_linear_head
from rlhf_lab.models.lora import trainable
from rlhf_lab.models.sharded import blocks_dtype, compute_in, within
from rlhf_lab.models.shared_prompt import hidden_states
from rlhf_lab.rewards.learned.bt import ScoreScale
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
        run.needs["reward"],
        settings,
        outputs=len(attributes),
        device=run.load_device,
        trained=True,
        base=run.base,
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
    """Return a critic on the trunk of a model that is ready to train, fully or with an adapter."""
    critic = Critic(width, model.base_model, _device(model))
    dtype = blocks_dtype(model)
    if dtype:
        compute_in(critic, dtype)
    return critic


def _device(model: nn.Module) -> torch.device:
    """Return the device of a model's parameters; meta if only the main process has their values."""
    return next(model.parameters()).device
