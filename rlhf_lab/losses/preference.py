"""Preference losses: pure functions from log-probabilities to one loss per pair.

Every function takes log-probabilities in nats and returns the loss of each pair and the margin between the two replies'
implicit rewards. `losses/objective.py` says what each of them has to be given.
"""

from __future__ import annotations

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
    margin_B = beta * _log_ratio_gap(policy, ref)
    per_pair_B = -(1 - label_smoothing) * logsigmoid(margin_B) - label_smoothing * logsigmoid(-margin_B)
    return PreferenceLoss(per_pair_B, margin_B.detach())


def robust(policy: PairLogps, ref: PairLogps, *, beta: float, label_smoothing: float) -> PreferenceLoss:
    """Robust DPO (arXiv:2403.00409, §3): [−(1−ε)·log σ(m) + ε·log σ(−m)] / (1−2ε), m as in DPO.

    Its mean over labels that are flipped with probability ε is the DPO loss of the clean labels. Not bounded below.
    """
    margin_B = beta * _log_ratio_gap(policy, ref)
    signed_B = -(1 - label_smoothing) * logsigmoid(margin_B) + label_smoothing * logsigmoid(-margin_B)
    return PreferenceLoss(signed_B / (1 - 2 * label_smoothing), margin_B.detach())


def ipo(policy: PairLogps, ref: PairLogps, *, beta: float) -> PreferenceLoss:
    """IPO (arXiv:2310.12036, eq. 17): (h − 1/(2β))², h the log-ratio gap, β the paper's τ; the margin is β·h.

    Takes log-probabilities per token: as in TRL, whose comment says that the paper's results use them too.
    """
    gap_B = _log_ratio_gap(policy, ref)
    return PreferenceLoss((gap_B - 1 / (2 * beta)) ** 2, beta * gap_B.detach())


def hinge(policy: PairLogps, ref: PairLogps, *, beta: float) -> PreferenceLoss:
    """Hinge on DPO's margin: max(0, 1 − m) (SLiC, arXiv:2305.10425, on the log-ratios of RSO, arXiv:2309.06657)."""
    margin_B = beta * _log_ratio_gap(policy, ref)
    return PreferenceLoss(torch.relu(1 - margin_B), margin_B.detach())


def apo_zero(policy: PairLogps, ref: PairLogps, *, beta: float) -> PreferenceLoss:
    """APO-zero (arXiv:2408.06266, eq. 7, plus 1): 1 − σ(r_chosen) + σ(r_rejected), r = β·log π/π_ref.

    Chosen replies become likelier and rejected ones less likely: for replies better than the policy's own.
    """
    chosen_B, rejected_B = _implicit_rewards(policy, ref, beta)
    return PreferenceLoss(torch.sigmoid(-chosen_B) + torch.sigmoid(rejected_B), (chosen_B - rejected_B).detach())


def apo_down(policy: PairLogps, ref: PairLogps, *, beta: float) -> PreferenceLoss:
    """APO-down (arXiv:2408.06266, eq. 8, plus 1): σ(r_chosen) + 1 − σ(r_chosen − r_rejected), r = β·log π/π_ref.

    Both become less likely, the rejected reply more so: for replies worse than the policy's own.
    """
    chosen_B, rejected_B = _implicit_rewards(policy, ref, beta)
    margin_B = chosen_B - rejected_B
    return PreferenceLoss(torch.sigmoid(chosen_B) + torch.sigmoid(-margin_B), margin_B.detach())


def kto(
    policy: PairLogps,
    ref: PairLogps,
    z_ref: Tensor,
    *,
    beta: float,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> PreferenceLoss:
    """KTO (arXiv:2402.01306, eq. 7) of two unpaired examples, one desirable, one undesirable: the mean of their losses.

    With r = log π/π_ref: λ_D·(1 − σ(β·(r_chosen − z_ref))) and λ_U·(1 − σ(β·(z_ref − r_rejected))). Every pair has one
    example of each kind, so the mean over pairs is the mean over examples.

    Args:
        z_ref: scalar or (B,), nats, ≥ 0 and without gradient: an estimate of KL(π ‖ π_ref) (`mismatched_kl`).
        desirable_weight, undesirable_weight: λ_D, λ_U.
    """
    chosen_B, rejected_B = policy.chosen - ref.chosen, policy.rejected - ref.rejected
    desirable_B = desirable_weight * torch.sigmoid(-beta * (chosen_B - z_ref))
    undesirable_B = undesirable_weight * torch.sigmoid(-beta * (z_ref - rejected_B))
    return PreferenceLoss((desirable_B + undesirable_B) / 2, beta * (chosen_B - rejected_B).detach())


def kto_unpaired(
    policy_B: torch.Tensor,
    ref_B: torch.Tensor,
    desirable_B: torch.Tensor,
    z_ref: torch.Tensor,
    *,
    beta: float,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> PreferenceLoss:
    """KTO (arXiv:2402.01306, eq. 7) of single examples: the terms of `kto`, each with its own prompt.

    Args:
        policy_B, ref_B: log-probabilities of the replies, nats.
        desirable_B: bool, True where the reply was liked.
    Returns:
        The loss of each example, and as margin β·log π/π_ref, with the sign of the label.
    """
    ratio_B = policy_B - ref_B
    loss_of_liked_B = desirable_weight * torch.sigmoid(-beta * (ratio_B - z_ref))
    loss_of_disliked_B = undesirable_weight * torch.sigmoid(-beta * (z_ref - ratio_B))
    margin_B = beta * torch.where(desirable_B, ratio_B, -ratio_B)
    return PreferenceLoss(torch.where(desirable_B, loss_of_liked_B, loss_of_disliked_B), margin_B.detach())


def simpo(policy: PairLogps, *, beta: float, gamma_beta_ratio: float) -> PreferenceLoss:
    """SimPO (arXiv:2405.14734, eq. 6): −log σ(m − γ) with m = β·(log π(chosen) − log π(rejected)), per token.

    γ = β·gamma_beta_ratio is the target margin; the returned margin is m, without it.
    """
    margin_B = beta * (policy.chosen - policy.rejected)
    return PreferenceLoss(-logsigmoid(margin_B - beta * gamma_beta_ratio), margin_B.detach())


def cpo(policy: PairLogps, chosen_nll: Tensor, *, beta: float, nll_weight: float) -> PreferenceLoss:
    """CPO (arXiv:2401.08417, eq. 3 and the NLL term): −log σ(β·(log π(chosen) − log π(rejected))) + λ·NLL(chosen).

    Args:
        chosen_nll: −log π(chosen) per token, (B,). The paper writes the sum; its code and TRL average over tokens. The
            mean here is within the reply: over a whole batch it would not be the loss of a pair.
        nll_weight: λ.
    """
    margin_B = beta * (policy.chosen - policy.rejected)
    return PreferenceLoss(-logsigmoid(margin_B) + nll_weight * chosen_nll, margin_B.detach())


def orpo(policy: PairLogps, *, beta: float) -> PreferenceLoss:
    """ORPO (arXiv:2403.07691, eq. 6 and 7): NLL(chosen) − β·log σ(m), m = log odds(chosen) − log odds(rejected).

    odds = P/(1 − P) with P = exp(log π per token), the paper's eq. 1 and 3; β is its λ. The NLL is of reply tokens, in
    TRL of prompt and reply.
    """
    margin_B = _log_odds(policy.chosen) - _log_odds(policy.rejected)
    return PreferenceLoss(-policy.chosen - beta * logsigmoid(margin_B), margin_B.detach())


def inpo(
    policy: PairLogps, ref: PairLogps, previous: PairLogps, *, beta: float, reference_share: float
) -> PreferenceLoss:
    """INPO (arXiv:2407.00617, §3, algorithm 1): (h − 1/(2η))², the pair's log-ratio gap against a mixed anchor.

        h = log π(chosen)/π(rejected) − (τ/η)·log π_ref(chosen)/π_ref(rejected)
                                      − ((η−τ)/η)·log π_t(chosen)/π_t(rejected)

    Mirror descent on the KL-regularised game: π_t+1 ∝ π_ref^(τ/η) · π_t^(1−τ/η) · exp(P(y ≻ π_t)/η). β is τ, the pull
    towards the reference, and `reference_share` is τ/η, so η = β/reference_share; a share of 1 leaves the previous
    iterate out (IPO on whole replies). The margin is η·h: ½ at the minimum.

    Args:
        previous: log-probabilities under π_t, the policy at the start of the round.
    """
    eta = beta / reference_share
    gap_B = reference_share * _log_ratio_gap(policy, ref) + (1 - reference_share) * _log_ratio_gap(policy, previous)
    return PreferenceLoss((gap_B - 1 / (2 * eta)) ** 2, eta * gap_B.detach())


def _log_ratio_gap(policy: PairLogps, ref: PairLogps) -> Tensor:
    """h = log π/π_ref(chosen) − log π/π_ref(rejected), (B,)."""
    return (policy.chosen - ref.chosen) - (policy.rejected - ref.rejected)


def _implicit_rewards(policy: PairLogps, ref: PairLogps, beta: float) -> tuple[Tensor, Tensor]:
    """β·log π/π_ref of the chosen and of the rejected replies, each (B,)."""
    return beta * (policy.chosen - ref.chosen), beta * (policy.rejected - ref.rejected)


def _log_odds(logp_B: Tensor) -> Tensor:
    """log(P/(1 − P)) from log P < 0; P is cut at 1 − 1e-6."""
    logp_B = logp_B.clamp(max=-1e-6)
    # log(1 − P) in the form that keeps its digits: log1p below P = ½ (log P = −0.693), expm1 above it.
    log_complement_B = torch.where(logp_B < -0.693, torch.log1p(-logp_B.exp()), torch.log(-torch.expm1(logp_B)))
    return logp_B - log_complement_B


def idealised_ranking(ref: PairLogps, p_chosen_B: Tensor, *, beta: float) -> Tensor:
    """1 where the optimum of the DPO objective ranks the pair correctly (arXiv:2405.19534, theorem 3.1), (B,) bool.

    The optimal policy has π*(y) ∝ π_ref(y)·exp(r(y)/β) with r_chosen − r_rejected = logit(p), so it prefers the chosen
    reply when log π_ref(chosen) − log π_ref(rejected) + logit(p)/β > 0. `p_chosen_B` is the probability that an
    annotator prefers the chosen reply.
    """
    return ref.chosen - ref.rejected + torch.logit(p_chosen_B, eps=1e-6) / beta > 0
