"""Reward function for TRL around rlhf_lab's reward: same texts, checks and shaping as in the native engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from rlhf_lab.algorithms.policy_gradient.on_policy import OnPolicy
from rlhf_lab.algorithms.policy_gradient.rollouts import group_metrics, penalty_means, truth_means
from rlhf_lab.core.episodes import Episode, Segment
from rlhf_lab.losses.kl import k1, k3
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.sampling.experience import EpisodeGroup, Experience, episodes_of


def reward_function(algorithm: OnPolicy) -> Callable[..., list[float | None]]:
    """Return a function with TRL's signature: the shaped score of each response, None if the reward abstains."""
    encoder, rollouts, shaper = algorithm.encoder, algorithm.rollouts, algorithm.shaper
    group_size = algorithm.settings.group_size
    max_prompt_tokens = algorithm.run.config.rollout.max_prompt_tokens
    encode = partial(encoder.uncounted().prompt, max_tokens=max_prompt_tokens)
    corpus = algorithm.run.corpus

    def episode_of(prompt: str, prompt_ids: list[int], response_ids: list[int]) -> Episode:
        finished = bool(response_ids) and response_ids[-1] in encoder.stop_ids
        segment = Segment(response_ids, sampled=True)  # TRL passes no log-probabilities
        return Episode(corpus.task(prompt), prompt, encoder.text(response_ids), prompt_ids, (segment,), finished)

    def reward(
        prompts: list[str], completion_ids: list[list[int]], trainer_state: Any, **_columns: Any
    ) -> list[float | None]:
        # TRL repeats each prompt for its group, so every distinct prompt is tokenised once.
        encoded = {prompt: encode(prompt) for prompt in dict.fromkeys(prompts)}
        episodes = [
            episode_of(prompt, encoded[prompt], response_ids)
            for prompt, response_ids in zip(prompts, completion_ids, strict=True)
        ]
        batch = rollouts.reward(episodes)
        rollouts.reward.observe(batch)
        rewards = batch.total_N
        shaper.observe(rewards)
        scores = shaper(rewards, [len(ids) for ids in completion_ids], [episode.finished for episode in episodes])
        groups = []
        for start in range(0, len(prompts), group_size):  # TRL passes the responses to a prompt next to each other
            members = slice(start, start + group_size)
            groups.append(
                EpisodeGroup(
                    episodes[start].task,
                    episodes[members],
                    rewards=rewards[members].tolist(),
                    scores=scores[members].tolist(),
                )
            )
        algorithm.generated += sum(map(len, completion_ids))
        rollouts.groups += len(groups)
        rollouts.wasted += sum(group.wasted for group in groups)
        truth = algorithm.run.measure_samples(episodes)
        metrics = group_metrics(groups) | penalty_means(shaper, groups) | truth_means(truth)
        metrics |= algorithm.monitor.see_groups(groups)
        if algorithm.beta or algorithm.settings.log_kl:
            metrics |= _measure_kl(algorithm, groups)
        algorithm.run.log(trainer_state.global_step, **metrics)
        return [float(score) if np.isfinite(score) else None for score in scores]

    return reward


@torch.no_grad()
def _measure_kl(algorithm: OnPolicy, groups: list[EpisodeGroup]) -> dict[str, float]:
    """Return KL to the reference and entropy of the samples; names as in `algorithms/policy_gradient/metrics.py`."""
    experience = Experience.of(episodes_of(groups))

    def logps(model: nn.Module) -> torch.Tensor:
        return algorithm.per_token(
            experience, lambda batch: token_logps(model, batch, temperature=algorithm.temperature).logps_N
        )

    policy_N = logps(algorithm.model)
    ref_N = logps(algorithm.reference)
    return {
        "kl": float(experience.row_sums(k1(policy_N, ref_N)).mean()),
        "kl_k3": float(experience.row_sums(k3(policy_N, ref_N)).mean()),
        "entropy": float(-policy_N.mean()),
    }
