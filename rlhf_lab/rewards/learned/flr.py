"""Follow-up likelihood as a reward: log-probabilities of a satisfied and a dissatisfied user's next message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.types import FloatArray, RewardBatch
from rlhf_lab.data.transcript import after_colon, quote
from rlhf_lab.models.build import load_encoder, load_policy
from rlhf_lab.models.encoding import Encoder, TokenBatch
from rlhf_lab.models.logprobs import sum_rows, token_logps
from rlhf_lab.models.passes import over_rows
from rlhf_lab.rewards.learned.settings import FollowUpLikelihood
from rlhf_lab.training.run import Run

USER = "\n\nHuman:"
"""Start of a user's turn in a transcript."""


class FollowUpReward:
    """Reward of `FollowUpLikelihood`. A follow-up is a user's turn, so it has no EOS, which only ends responses."""

    collective = True

    def __init__(self, model: Any, encoder: Encoder, settings: FollowUpLikelihood, device: str):
        self.model = model
        self.encoder = encoder.uncounted()  # truncated conversations do not count as truncated data
        self.settings = settings
        self.device = device

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        """Score responses. Parts: mean log-likelihood of the positive and the negative follow-ups, nats per token."""
        settings = self.settings
        conversations = []
        for prompt, response in zip(prompts, responses, strict=True):
            # A response that contains a turn marker must not open a turn of its own, so it is quoted.
            conversations.append(f"{prompt}{after_colon(quote(response))}{USER}")
        logps_NF = self._mean_logps(conversations, (*settings.positive, *settings.negative))
        positive_NF, negative_NF = np.split(logps_NF, [len(settings.positive)], axis=1)
        positive_N, negative_N = positive_NF.mean(axis=1), negative_NF.mean(axis=1)
        return RewardBatch(positive_N - negative_N, {"positive": positive_N, "negative": negative_N})

    @torch.no_grad()
    def _mean_logps(self, conversations: Sequence[str], texts: Sequence[str]) -> FloatArray:
        """Return the mean log-probability per token of each text after each conversation, nats, (N, texts)."""
        follow_ups = [self.encoder.response(text)[:-1] for text in texts]  # without the final EOS
        max_prompt = self.settings.max_length - max(map(len, follow_ups))
        prompts = [self.encoder.prompt(conversation, max_prompt) for conversation in conversations]
        # One row per conversation and text; the result is reshaped to (N, texts) at the end.
        rows = [(prompt, follow_up) for prompt in prompts for follow_up in follow_ups]
        logp_R = torch.zeros(len(rows), dtype=torch.float64)
        for index, logp_B in over_rows(rows, self._mean_logp, self.settings.batch_tokens, self.device):
            logp_R[index] = logp_B
        return logp_R.numpy().reshape(len(conversations), len(texts))

    def _mean_logp(self, batch: TokenBatch) -> torch.Tensor:
        """Return the mean log-probability per response token of each row, nats, float64."""
        logps = token_logps(self.model, batch)
        total_B = sum_rows(logps.logps_N.double(), logps.row_N, logps.rows)
        return (total_B / (batch.length_B - batch.prompt_len_B)).cpu()


def build(settings: FollowUpLikelihood, run: Run) -> FollowUpReward:
    source, model_settings = run.needs["follow_up"], run.config.model
    encoder = load_encoder(source, model_settings)
    if encoder.chat:
        raise ConfigError("reward=flr writes the user's turn as a transcript; set model.chat_template=false")
    policy = load_policy(source, model_settings, device=run.device).requires_grad_(False)
    follow_ups = (*settings.positive, *settings.negative)
    max_length = max(len(encoder.response(text)) for text in follow_ups)
    if max_length >= settings.max_length:
        raise ConfigError(
            f"reward.terms.flr.max_length={settings.max_length} leaves no tokens for a conversation: a follow-up "
            f"has {max_length} tokens; raise max_length"
        )
    return FollowUpReward(policy, encoder, settings, run.device)
