"""Responses of the policy that a reward model starts from: labelled ones to train on, others to standardise scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from rlhf_lab.core.types import Pair
from rlhf_lab.models.build import load_encoder, load_policy
from rlhf_lab.sampling.episodes import EpisodeCollector
from rlhf_lab.training.run import Run

SCALE_PROMPTS = 256
"""Maximum number of training prompts whose responses set the scale of a reward model's scores."""


class PolicyResponses:
    """Sampler of `needs.policy`. Samples depend only on the run's seed and a purpose, not on other sampling."""

    def __init__(self, run: Run):
        source = run.needs["policy"]
        settings = run.config.model
        self.run = run
        self.encoder = load_encoder(source, settings)
        self.policy = load_policy(source, settings, device=run.device)
        self.collector = EpisodeCollector(run, self.encoder)

    def sample_pairs(self, split: str, count: int) -> tuple[list[str], list[str], list[str]]:
        """Return (prompts, first responses, second responses) for `count` prompts, sampled with replacement."""
        prompts = self.run.corpus.prompts(split)
        generator = torch.Generator().manual_seed(self.run.seed(f"reward_model/prompts/{split}"))
        indices = torch.randint(len(prompts), (count,), generator=generator)
        selected = [prompts[int(i)] for i in indices]
        if not selected:
            return [], [], []
        first, second = self.sample(selected, 2, f"reward_model/{split}")
        return selected, first, second

    def labelled_pairs(self, split: str, count: int) -> list[Pair]:
        """Return pairs of responses to `count` prompts of a split, labelled by the simulated annotator of the data.

        Pairs of equal responses and pairs without a label are left out. Without an annotator there are no pairs.
        """
        oracle = self.run.corpus.oracle
        if not count or oracle is None:
            return []
        prompts, first, second = self.sample_pairs(split, count)
        seed = self.run.seed(f"reward_model/labels/{split}") % 2**31
        first_wins, p_first = oracle.prefer(prompts, first, second, seed=seed)
        labelled = []
        for prompt, a, b, a_wins, p in zip(prompts, first, second, first_wins, p_first, strict=True):
            if a == b or math.isnan(p):  # equal responses are not a pair, NaN is no label
                continue
            if a_wins:
                labelled.append(Pair(prompt, a, b, {"p_chosen": p}))
            else:
                labelled.append(Pair(prompt, b, a, {"p_chosen": 1 - p}))
        return labelled

    def for_scale(self) -> tuple[list[str], list[str], list[int]]:
        """Return (prompts, responses, prompt indices), with two responses to each of some training prompts.

        Scores are scaled to mean 0 and standard deviation 1 over these responses.
        """
        prompts = self.run.corpus.prompts("train")[:SCALE_PROMPTS]
        first, second = self.sample(prompts, 2, "reward_model/scale")
        prompt_numbers = [*range(len(prompts))]
        return prompts * 2, first + second, prompt_numbers * 2

    def sample(self, prompts: Sequence[str], group: int, purpose: str, index: int = 0) -> list[list[str]]:
        """Return `group` lists with one response per prompt; `purpose` and `index` identify the samples."""
        tasks = [self.run.corpus.task(prompt) for prompt in prompts]
        seed = self.run.seed(purpose, index)
        collected = self.collector.collect(self.policy, tasks, group, seed)
        return [[episodes[g].response for episodes in collected] for g in range(group)]
