"""Preference losses: pure functions from log-probabilities to one loss per pair."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


class PairLogps(NamedTuple):
    """Log-probabilities of both replies of each pair, nats, summed over reply tokens. Each (B,)."""

    chosen: Tensor
    rejected: Tensor


class PreferenceLoss(NamedTuple):
    """Loss of each pair and the implicit-reward margin behind it (detached). Each (B,)."""

    per_pair_B: Tensor
    margin_B: Tensor


def dpo(policy: PairLogps, ref: PairLogps, *, beta: float, label_smoothing: float = 0.0) -> PreferenceLoss:
    """DPO (arXiv:2305.18290, eq. 7): −log σ(m) with m = β·(log π/π_ref(chosen) − log π/π_ref(rejected)).

    `label_smoothing` ε gives conservative DPO: −(1−ε)·log σ(m) − ε·log σ(−m).
    """
    margin_B = beta * ((policy.chosen - ref.chosen) - (policy.rejected - ref.rejected))
    per_pair_B = -(1 - label_smoothing) * logsigmoid(margin_B) - label_smoothing * logsigmoid(-margin_B)
    return PreferenceLoss(per_pair_B, margin_B.detach())


PREFERENCE_LOSSES: dict[str, Callable[..., PreferenceLoss]] = {"sigmoid": dpo}


def idealised_ranking(ref: PairLogps, p_chosen_B: Tensor, *, beta: float) -> Tensor:
    """1 where the optimum of the DPO objective ranks the pair correctly (arXiv:2405.19534, theorem 3.1), (B,) bool.

    The optimal policy has π*(y) ∝ π_ref(y)·exp(r(y)/β) with r_chosen − r_rejected = logit(p), so it prefers the chosen
    reply when log π_ref(chosen) − log π_ref(rejected) + logit(p)/β > 0. `p_chosen_B` is the probability that an
    annotator prefers the chosen reply.
    """
    return ref.chosen - ref.rejected + torch.logit(p_chosen_B, eps=1e-6) / beta > 0
