"""The lab's reward as a reward function of TRL: same texts, same checks, same shaping as the native engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from rlhf_lab.algorithms.policy_gradient.metrics import ROLLOUTS
from rlhf_lab.algorithms.policy_gradient.on_policy import OnPolicy
from rlhf_lab.core.metrics import names
from rlhf_lab.losses.kl import k1, k3
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.sampling.experience import Experience, Group


def reward_function(algorithm: OnPolicy) -> Callable[..., list[float | None]]:
    """A function with TRL's signature: a shaped score for each reply, None where the reward abstains."""
    encoder, rollouts, shaper = algorithm.encoder, algorithm.rollouts, algorithm.shaper
    size, limit = algorithm.settings.group_size, algorithm.run.config.rollout.max_prompt_tokens
    encode = partial(replace(encoder, counts={}).prompt, max_tokens=limit)

    def reward(
        prompts: list[str], completion_ids: list[list[int]], trainer_state: Any, **_columns: Any
    ) -> list[float | None]:
        texts = [encoder.text(ids) for ids in completion_ids]
        batch = rollouts.reward(prompts, texts)
        rollouts.reward.observe(batch)
        rewards = batch.total_N
        ended = [bool(ids) and ids[-1] in encoder.stop_ids for ids in completion_ids]
        shaper.observe(rewards)
        scores = shaper(rewards, [len(ids) for ids in completion_ids], ended)
        groups = [
            Group(
                prompts[i],
                encode(prompts[i]),
                completion_ids[i : i + size],
                [],
                texts[i : i + size],
                ended[i : i + size],
                rewards[i : i + size].tolist(),
                scores[i : i + size].tolist(),
            )
            for i in range(0, len(prompts), size)
        ]
        algorithm.generated += sum(map(len, completion_ids))
        rollouts.groups += len(groups)
        rollouts.wasted += sum(group.wasted for group in groups)
        metrics = _metrics(groups) | _truth(algorithm, prompts, texts) | algorithm.monitor.see_groups(groups)
        if algorithm.beta or algorithm.settings.log_kl:
            metrics |= _divergence(algorithm, groups)
        algorithm.run.log(trainer_state.global_step, **metrics)
        return [float(score) if np.isfinite(score) else None for score in scores]

    return reward


@torch.no_grad()
def _divergence(algorithm: OnPolicy, groups: list[Group]) -> dict[str, float]:
    """KL from the reference and entropy of the samples; names as in `algorithms/policy_gradient/metrics.py`."""
    experience = Experience([(group.ids, reply) for group in groups for reply in group.replies], {})

    def logps(model: nn.Module) -> torch.Tensor:
        return algorithm.per_token(
            experience, lambda batch: token_logps(model, batch, temperature=algorithm.temperature).logps_N
        )

    now_N, ref_N = logps(algorithm.model), logps(algorithm.reference)
    return {
        "kl": float(experience.row_sums(k1(now_N, ref_N)).mean()),
        "kl_k3": float(experience.row_sums(k3(now_N, ref_N)).mean()),
        "entropy": float(-now_N.mean()),
    }


def _metrics(groups: list[Group]) -> dict[str, float]:
    """What rollouts of the native engine log, under the same names."""
    rewards, scores = (np.array([getattr(group, name) for group in groups]) for name in ("rewards", "scores"))
    lengths = [len(reply) for group in groups for reply in group.replies]
    known = rewards[np.isfinite(rewards)]
    return {
        "reward": float(known.mean()) if len(known) else float("nan"),
        "reward_sd": float(known.std()) if len(known) else float("nan"),
        "score": float(np.nanmean(scores)) if len(known) else float("nan"),
        "tokens": float(np.mean(lengths)),
        "ended": float(np.mean([group.ended for group in groups])),
        "unscored": 1 - len(known) / rewards.size,
        "generated_tokens": float(sum(lengths)),
        "wasted_groups": float(np.mean([group.wasted for group in groups])),
    }


def _truth(algorithm: OnPolicy, prompts: list[str], texts: list[str]) -> dict[str, float]:
    """Means of what a world with a known truth says of the samples."""
    oracle = algorithm.run.corpus.oracle
    found = oracle.measure(prompts, texts) if oracle else {}
    return {name: float(values.mean()) for name, values in found.items() if name in names(ROLLOUTS)}
