"""The learned reward model as a reward: text in, standardised scores out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rlhf_lab.models.build import load_encoder, load_reward_model, reward_scores
from rlhf_lab.models.encoding import Encoder, length_batches
from rlhf_lab.rewards.settings import BradleyTerry
from rlhf_lab.train.run import Run
from rlhf_lab.types import RewardBatch

SCALE_FILE = "reward_scale.json"


@dataclass
class ScoreScale:
    """score → (score − mean)/sd, so that 0 and 1 mean the same for every reward model.

    Attributes:
        mean, sd: of the raw scores of `n` replies of the policy the model was trained from; 0, 1, 0 when unknown.
        max_length: tokens per row the model was trained with.
    """

    mean: float = 0.0
    sd: float = 1.0
    n: int = 0
    max_length: int = 512

    @classmethod
    def read(cls, folder: str | Path) -> ScoreScale:
        path = Path(folder) / SCALE_FILE
        return cls(**json.loads(path.read_text())) if path.exists() else cls()


class BTReward:
    """Scores replies with a Bradley-Terry reward model."""

    def __init__(self, model: Any, encoder: Encoder, scale: ScoreScale, device: str, batch_tokens: int):
        self.model, self.encoder, self.scale = model, encoder, scale
        self.device, self.batch_tokens = device, batch_tokens

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        scores = (self.raw(prompts, responses) - self.scale.mean) / self.scale.sd
        return RewardBatch(scores, {"bt": scores})

    @torch.no_grad()
    def raw(self, prompts: Sequence[str], responses: Sequence[str]) -> Any:
        """Unstandardised scores, (N,) float64."""
        rows = [self.encoder.row(p, r, self.scale.max_length) for p, r in zip(prompts, responses, strict=True)]
        scores = torch.zeros(len(rows), dtype=torch.float64)
        for part, batch in length_batches(rows, self.batch_tokens, self.device):
            scores[part] = reward_scores(self.model, batch).double().cpu()
        return scores.numpy()


def build(settings: BradleyTerry, run: Run) -> BTReward:
    source = run.needs["reward"]
    model = load_reward_model(source, run.config.model, device=run.device)
    scale = ScoreScale.read(source)
    if not scale.n:
        run.note(f"{source} has no {SCALE_FILE}: its scores are used as they are")
    return BTReward(model, load_encoder(source, run.config.model), scale, run.device, settings.batch_tokens)
