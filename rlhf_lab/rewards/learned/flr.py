"""Follow-up likelihood as a reward: log-probabilities of what a content and a discontent user would say next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.types import FloatArray, RewardBatch
from rlhf_lab.data.transcript import after_colon
from rlhf_lab.models.build import load_encoder, load_policy
from rlhf_lab.models.encoding import Encoder, TokenBatch
from rlhf_lab.models.logprobs import sum_rows, token_logps
from rlhf_lab.models.passes import over_rows
from rlhf_lab.rewards.learned.settings import FollowUpLikelihood
from rlhf_lab.training.run import Run

USER = "\n\nHuman:"


class FollowUpReward:
    """See `FollowUpLikelihood`. The follow-up stands in the user's turn and has no EOS, which ends replies only."""

    collective = True

    def __init__(self, model: Any, encoder: Encoder, settings: FollowUpLikelihood, device: str):
        self.model, self.encoder, self.settings, self.device = model, replace(encoder, counts={}), settings, device

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        """Parts: the mean log-likelihood of the positive and of the negative follow-ups, nats per token."""
        settings = self.settings
        texts = (*settings.positive, *settings.negative)
        talks = [f"{p}{after_colon(r)}{USER}" for p, r in zip(prompts, responses, strict=True)]
        found_NF = self._per_token(talks, texts)
        positive_N, negative_N = (part.mean(axis=1) for part in np.split(found_NF, [len(settings.positive)], axis=1))
        return RewardBatch(positive_N - negative_N, {"positive": positive_N, "negative": negative_N})

    @torch.no_grad()
    def _per_token(self, talks: Sequence[str], texts: Sequence[str]) -> FloatArray:
        """Mean log-probability of a token of each text after each conversation, nats, (N, texts)."""
        follow_ups = [self.encoder.response(text)[:-1] for text in texts]
        room = self.settings.max_length - max(map(len, follow_ups))
        heads = [self.encoder.prompt(talk, room) for talk in talks]
        rows = [(head, follow_up) for head in heads for follow_up in follow_ups]
        found_R = torch.zeros(len(rows), dtype=torch.float64)
        for part, mean_B in over_rows(rows, self._mean_logp, self.settings.batch_tokens, self.device):
            found_R[part] = mean_B
        return found_R.numpy().reshape(len(talks), len(texts))

    def _mean_logp(self, batch: TokenBatch) -> torch.Tensor:
        """Mean log-probability of a reply token of each row, nats, float64."""
        logps = token_logps(self.model, batch)
        total_B = sum_rows(logps.logps_N.double(), logps.row_N, logps.rows)
        return (total_B / (batch.length_B - batch.prompt_len_B)).cpu()


def build(settings: FollowUpLikelihood, run: Run) -> FollowUpReward:
    source, model = run.needs["follow_up"], run.config.model
    encoder = load_encoder(source, model)
    if encoder.chat:
        raise ConfigError("reward=flr writes a user's turn as a transcript; set model.chat_template=false")
    policy = load_policy(source, model, device=run.device).requires_grad_(False)
    longest = max(len(encoder.response(text)) for text in (*settings.positive, *settings.negative))
    if longest >= settings.max_length:
        raise ConfigError(
            f"reward.terms.flr.max_length={settings.max_length} leaves no room for a conversation: a follow-up "
            f"has {longest} tokens"
        )
    return FollowUpReward(policy, encoder, settings, run.device)
