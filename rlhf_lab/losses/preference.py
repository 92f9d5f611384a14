"""Preference losses: pure functions from log-probabilities to one loss per pair.

Every function takes log-probabilities in nats. It returns the loss of each pair and the margin between the implicit
rewards of the two responses. `PREFERENCE_LOSSES` is the table of losses: `algorithm.loss` → function and the inputs it
needs. Algorithms ask an objective for its inputs. They never test its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


class PairLogps(NamedTuple):
    """Log-probabilities of both responses of each pair, nats, summed over response tokens. Each (B,)."""

    chosen: Tensor
    rejected: Tensor


class PreferenceLoss(NamedTuple):
    """Loss of each pair and its implicit-reward margin (detached). Each (B,)."""

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

    The mean over labels flipped with probability ε equals the DPO loss of the clean labels. It is not bounded below.
    """
    margin_B = beta * _log_ratio_gap(policy, ref)
    signed_B = -(1 - label_smoothing) * logsigmoid(margin_B) + label_smoothing * logsigmoid(-margin_B)
    return PreferenceLoss(signed_B / (1 - 2 * label_smoothing), margin_B.detach())


def ipo(policy: PairLogps, ref: PairLogps, *, beta: float) -> PreferenceLoss:
    """IPO (arXiv:2310.12036, eq. 17): (h − 1/(2β))², h the log-ratio gap, β the paper's τ; the margin is β·h.

    Log-probabilities are per token, as in TRL, whose source comments that the paper's results use this form too.
    """
    gap_B = _log_ratio_gap(policy, ref)
    return PreferenceLoss((gap_B - 1 / (2 * beta)) ** 2, beta * gap_B.detach())


def hinge(policy: PairLogps, ref: PairLogps, *, beta: float) -> PreferenceLoss:
    """Hinge on DPO's margin: max(0, 1 − m) (SLiC, arXiv:2305.10425, on the log-ratios of RSO, arXiv:2309.06657)."""
    margin_B = beta * _log_ratio_gap(policy, ref)
    return PreferenceLoss(torch.relu(1 - margin_B), margin_B.detach())


def apo_zero(policy: PairLogps, ref: PairLogps, *, beta: float) -> PreferenceLoss:
    """APO-zero (arXiv:2408.06266, eq. 7, plus 1): 1 − σ(r_chosen) + σ(r_rejected), r = β·log π/π_ref.

    Chosen responses become likelier and rejected ones less likely. Use it if they are better than the policy's own.
    """
    chosen_B, rejected_B = _implicit_rewards(policy, ref, beta)
    margin_B = chosen_B - rejected_B
    # 1 − σ(r) is computed as σ(−r), which keeps its digits for large r
    return PreferenceLoss(torch.sigmoid(-chosen_B) + torch.sigmoid(rejected_B), margin_B.detach())


def apo_down(policy: PairLogps, ref: PairLogps, *, beta: float) -> PreferenceLoss:
    """APO-down (arXiv:2408.06266, eq. 8, plus 1): σ(r_chosen) + 1 − σ(r_chosen − r_rejected), r = β·log π/π_ref.

    Both become less likely, the rejected response more so. Use it if responses are worse than the policy's own.
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
    # r = log π/π_ref of both responses, without β, because z_ref is in nats
    chosen_B = policy.chosen - ref.chosen
    rejected_B = policy.rejected - ref.rejected
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
        policy_B, ref_B: log-probabilities of the responses, nats.
        desirable_B: True where the response was liked.
    Returns:
        Loss of each example, and as margin β·log π/π_ref with the sign of the label.
    """
    ratio_B = policy_B - ref_B
    loss_of_liked_B = desirable_weight * torch.sigmoid(-beta * (ratio_B - z_ref))
    loss_of_disliked_B = undesirable_weight * torch.sigmoid(-beta * (z_ref - ratio_B))
    margin_B = beta * torch.where(desirable_B, ratio_B, -ratio_B)
    return PreferenceLoss(torch.where(desirable_B, loss_of_liked_B, loss_of_disliked_B), margin_B.detach())


def simpo(policy: PairLogps, *, beta: float, gamma_beta_ratio: float) -> PreferenceLoss:
    """SimPO (arXiv:2405.14734, eq. 6): −log σ(m − γ) with m = β·(log π(chosen) − log π(rejected)), per token.

    γ = β·gamma_beta_ratio is the target margin; the returned margin is m without γ.
    """
    margin_B = beta * (policy.chosen - policy.rejected)
    # the logged margin excludes γ, so that it can be compared with other losses and its sign is the accuracy
    return PreferenceLoss(-logsigmoid(margin_B - beta * gamma_beta_ratio), margin_B.detach())


def cpo(policy: PairLogps, chosen_nll: Tensor, *, beta: float, nll_weight: float) -> PreferenceLoss:
    """CPO (arXiv:2401.08417, eq. 3 and the NLL term): −log σ(β·(log π(chosen) − log π(rejected))) + λ·NLL(chosen).

    Args:
        chosen_nll: −log π(chosen) per token, (B,). The paper writes the sum; its code and TRL average over tokens. The
            mean here is within the response: a mean over a batch would not be the loss of a pair.
        nll_weight: λ.
    """
    margin_B = beta * (policy.chosen - policy.rejected)
    return PreferenceLoss(-logsigmoid(margin_B) + nll_weight * chosen_nll, margin_B.detach())


def orpo(policy: PairLogps, *, beta: float) -> PreferenceLoss:
    """ORPO (arXiv:2403.07691, eq. 6 and 7): NLL(chosen) − β·log σ(m), m = log odds(chosen) − log odds(rejected).

    odds = P/(1 − P) with P = exp(log π per token), the paper's eq. 1 and 3; β is its λ. The NLL covers response
    tokens only; TRL includes the prompt.
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
    towards the reference. `reference_share` is τ/η, so η = β/reference_share; with 1 the previous iterate is unused
    (IPO on full responses). The margin is η·h and equals ½ at the minimum.

    Args:
        previous: log-probabilities under π_t, the policy at the start of the round.
    """
    eta = beta / reference_share
    # The anchor is a mixture of reference and previous iterate, so the gap to it is a mixture of the two gaps.
    reference_gap_B = reference_share * _log_ratio_gap(policy, ref)
    previous_gap_B = (1 - reference_share) * _log_ratio_gap(policy, previous)
    gap_B = reference_gap_B + previous_gap_B
    return PreferenceLoss((gap_B - 1 / (2 * eta)) ** 2, eta * gap_B.detach())


def _log_ratio_gap(policy: PairLogps, ref: PairLogps) -> Tensor:
    """h = log π/π_ref(chosen) − log π/π_ref(rejected), (B,)."""
    return (policy.chosen - ref.chosen) - (policy.rejected - ref.rejected)


def _implicit_rewards(policy: PairLogps, ref: PairLogps, beta: float) -> tuple[Tensor, Tensor]:
    """β·log π/π_ref of the chosen and of the rejected responses, each (B,)."""
    chosen_B = beta * (policy.chosen - ref.chosen)
    rejected_B = beta * (policy.rejected - ref.rejected)
    return chosen_B, rejected_B


def _log_odds(logp_B: Tensor) -> Tensor:
    """Return log(P/(1 − P)) from log P < 0; P is clamped to 1 − 1e-6."""
    logp_B = logp_B.clamp(max=-1e-6)
    # Both branches compute log(1 − P). log1p is accurate below P = ½ (log P = −0.693), expm1 above it.
    below_half_B = torch.log1p(-logp_B.exp())
    above_half_B = torch.log(-torch.expm1(logp_B))
    log_complement_B = torch.where(logp_B < -0.693, below_half_B, above_half_B)
    return logp_B - log_complement_B


def idealised_ranking(ref: PairLogps, p_chosen_B: Tensor, *, beta: float) -> Tensor:
    """True where the optimum of the DPO objective ranks the pair correctly (arXiv:2405.19534, theorem 3.1), (B,) bool.

    The optimal policy has π*(y) ∝ π_ref(y)·exp(r(y)/β) with r_chosen − r_rejected = logit(p), so it prefers the chosen
    response if log π_ref(chosen) − log π_ref(rejected) + logit(p)/β > 0. `p_chosen_B` is the probability that an
    annotator prefers the chosen response.
    """
    # eps keeps the logit finite where the annotator is certain
    return ref.chosen - ref.rejected + torch.logit(p_chosen_B, eps=1e-6) / beta > 0


def kendall_tau(first_BG: Tensor, second_BG: Tensor) -> Tensor:
    """Kendall's τ-b between two scores of each row's G items, (B,); NaN if one of the scores has only ties.

    τ = Σ sign(a_i − a_j)·sign(b_i − b_j) / √(Σ sign(a_i − a_j)²·Σ sign(b_i − b_j)²) over i < j. Items without a score
    (NaN) are excluded.
    """
    items = first_BG.shape[1]
    # P = G·(G − 1)/2 pairs of items
    i, j = torch.triu_indices(items, items, offset=1)
    first_gap_BP = (first_BG[:, i] - first_BG[:, j]).double()
    second_gap_BP = (second_BG[:, i] - second_BG[:, j]).double()
    scored_BP = ~(first_gap_BP.isnan() | second_gap_BP.isnan())
    a_BP = torch.where(scored_BP, first_gap_BP.sign(), 0.0)
    b_BP = torch.where(scored_BP, second_gap_BP.sign(), 0.0)
    concordance_B = (a_BP * b_BP).sum(1)
    return concordance_B / (a_BP.square().sum(1) * b_BP.square().sum(1)).sqrt()


def consistency_rate(first_BG: Tensor, second_BG: Tensor) -> float:
    """CREAM's C (arXiv:2410.12735, algorithm 1): mean of (τ + 1)/2 over prompts, in [0, 1]; 1 if no prompt has a τ."""
    rate_B = (kendall_tau(first_BG, second_BG) + 1) / 2
    has_tau = bool((~rate_B.isnan()).any())
    return float(rate_B.nanmean()) if has_tau else 1.0


class PairTokens(NamedTuple):
    """Tokens of both responses of each pair, EOS included. Each (B,)."""

    chosen: Tensor
    rejected: Tensor


@dataclass(frozen=True)
class PairInputs:
    """All inputs of preference losses for a batch of pairs. Inputs that the configured loss does not need are None.

    Attributes:
        policy: log-probabilities under the trained model.
        tokens: response lengths.
        ref: log-probabilities under the frozen reference.
        previous: log-probabilities under the policy at the start of the round.
        z_ref: estimate of KL(policy ‖ reference), nats, scalar or (B,).
    """

    policy: PairLogps
    tokens: PairTokens
    ref: PairLogps | None = None
    previous: PairLogps | None = None
    z_ref: Tensor | None = None

    @property
    def chosen_nll(self) -> Tensor:
        """−log π(chosen) per token, (B,)."""
        return -self.policy.chosen / self.tokens.chosen

    def per_token(self) -> PairInputs:
        """Return the same pairs with log-probabilities averaged over the tokens of each response."""

        def average(logps: PairLogps) -> PairLogps:
            return PairLogps(logps.chosen / self.tokens.chosen, logps.rejected / self.tokens.rejected)

        return self._map_logps(average)

    def of_codebooks(self, codebooks: int) -> PairInputs:
        """Return each codebook of a pair as a separate pair, (B·codebooks,), from log-probabilities (B, codebooks)."""
        separate = self._map_logps(lambda logps: PairLogps(logps.chosen.flatten(), logps.rejected.flatten()))
        # Every codebook has an equal part of the response's tokens.
        lengths = (length_B.repeat_interleave(codebooks) / codebooks for length_B in self.tokens)
        return replace(separate, tokens=PairTokens(*lengths))

    def reversed(self) -> PairInputs:
        """Return the same pairs with the opposite label."""
        with_swapped_logps = self._map_logps(lambda logps: PairLogps(logps.rejected, logps.chosen))
        return replace(with_swapped_logps, tokens=PairTokens(self.tokens.rejected, self.tokens.chosen))

    def _map_logps(self, change: Callable[[PairLogps], PairLogps]) -> PairInputs:
        """Return the same pairs with `change` applied to the log-probabilities under every model present."""
        return replace(
            self,
            policy=change(self.policy),
            ref=None if self.ref is None else change(self.ref),
            previous=None if self.previous is None else change(self.previous),
        )


@dataclass(frozen=True)
class Objective:
    """A preference loss and its inputs.

    Attributes:
        title: name in tables.
        loss: loss function; its keyword arguments are settings with the same names.
        inputs: attributes of `PairInputs` that are passed as positional arguments.
        per_token: True if log-probabilities are averaged over the response's tokens instead of summed.
        dpo_optimum: True if the optimum is that of DPO, π_ref·exp(r/β), whose ranking `idealised_ranking` describes.
    """

    title: str
    loss: Callable[..., PreferenceLoss]
    inputs: tuple[str, ...] = ("policy", "ref")
    per_token: bool = False
    dpo_optimum: bool = False

    def needs(self, name: str) -> bool:
        """Return True if the loss reads this attribute of `PairInputs`: `ref`, `previous` or `z_ref`."""
        return name in self.inputs

    def __call__(
        self, pairs: PairInputs, coefficients: Mapping[str, float], consistency_B: Tensor | None = None
    ) -> PreferenceLoss:
        """Return the loss of each pair; with `consistency_B` = C in [0, 1]: C·L(pair) + (1 − C)·L(reversed pair).

        The mixture is CREAM's (arXiv:2410.12735, algorithm 1): if two rankings disagree on a label, the loss pulls in
        both directions. The margin is always that of the pair as labelled.
        """
        labelled = self._loss_of(pairs, coefficients)
        if consistency_B is None:
            return labelled
        # Swapping log-probabilities and lengths is the same as the opposite label.
        swapped = self._loss_of(pairs.reversed(), coefficients)
        mixed_B = consistency_B * labelled.per_pair_B + (1 - consistency_B) * swapped.per_pair_B
        return PreferenceLoss(mixed_B, labelled.margin_B)

    def _loss_of(self, pairs: PairInputs, coefficients: Mapping[str, float]) -> PreferenceLoss:
        # Averaging here instead of in the losses keeps each loss as its paper writes it.
        if self.per_token:
            pairs = pairs.per_token()
        arguments = [getattr(pairs, name) for name in self.inputs]
        return self.loss(*arguments, **coefficients)


# `dpo_optimum` is only set for DPO and robust DPO: the optima of the other losses are different.
PREFERENCE_LOSSES: dict[str, Objective] = {
    "sigmoid": Objective("DPO", dpo, dpo_optimum=True),
    "robust": Objective("robust DPO", robust, dpo_optimum=True),
    "ipo": Objective("IPO", ipo, per_token=True),
    "hinge": Objective("hinge DPO", hinge),
    "apo_zero": Objective("APO-zero", apo_zero),
    "apo_down": Objective("APO-down", apo_down),
    "kto": Objective("KTO", kto, ("policy", "ref", "z_ref")),
    "simpo": Objective("SimPO", simpo, ("policy",), per_token=True),
    "orpo": Objective("ORPO", orpo, ("policy",), per_token=True),
    "cpo": Objective("CPO", cpo, ("policy", "chosen_nll")),
    "inpo": Objective("INPO", inpo, ("policy", "ref", "previous")),
}
"""`algorithm.loss` → objective. The settings each one reads: `LOSS_SETTINGS` in algorithms/preference/settings.py."""
