"""Replies of the policy that a reward model starts from: labelled for training, and the scale of its scores."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rlhf_lab.models.build import load_encoder, load_policy
from rlhf_lab.sampling.episodes import EpisodeCollector
from rlhf_lab.training.run import Run

SCALE_PROMPTS = 256
"""Training prompts, at most, whose replies set the scale of a reward model's scores."""


class PolicyReplies:
    """Samples from `needs.policy`. Samples follow from the run's seed and a purpose, whatever else is sampled.

    Attributes:
        encoder: of the policy.
    """

    def __init__(self, run: Run):
        source = run.needs["policy"]
        settings = run.config.model
        self.run = run
        self.encoder = load_encoder(source, settings)
        self.policy = load_policy(source, settings, device=run.device)
        self.collector = EpisodeCollector(run, self.encoder)

    def twice(self, split: str, count: int) -> tuple[list[str], list[str], list[str]]:
        """(prompts, first replies, second replies): `count` prompts of a split, drawn with replacement."""
        prompts = self.run.corpus.prompts(split)
        generator = torch.Generator().manual_seed(self.run.seed(f"reward_model/prompts/{split}"))
        drawn = [prompts[int(i)] for i in torch.randint(len(prompts), (count,), generator=generator)]
        first, second = self.sample(drawn, 2, f"reward_model/{split}") if drawn else ([], [])
        return drawn, first, second

    def for_scale(self) -> tuple[list[str], list[str], list[int]]:
        """(prompts, replies, prompt numbers), two replies to each of some training prompts.

        Over these replies a score is scaled to mean 0 and standard deviation 1.
        """
        prompts = self.run.corpus.prompts("train")[:SCALE_PROMPTS]
        first, second = self.sample(prompts, 2, "reward_model/scale")
        prompt_numbers = [*range(len(prompts))]
        return prompts * 2, first + second, prompt_numbers * 2

    def sample(self, prompts: Sequence[str], group: int, purpose: str, index: int = 0) -> list[list[str]]:
        """`group` lists of one reply per prompt; purpose and index say which samples these are."""
        tasks = [self.run.corpus.task(prompt) for prompt in prompts]
        collected = self.collector.collect(self.policy, tasks, group, self.run.seed(purpose, index))
        return [[episodes[g].response for episodes in collected] for g in range(group)]
