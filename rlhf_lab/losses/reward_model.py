"""Reward-model losses: pure functions from scores to one loss per pair, or to one statistic of a step."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cosine_similarity, logsigmoid

NO_SPREAD = 1e-12
"""Added under the square root of a correlation, so that equal scores have correlation 0 and a finite gradient."""


def bradley_terry(chosen_B: Tensor, rejected_B: Tensor, *, margin: float = 0.0, centering: float = 0.0) -> Tensor:
    """−log σ(r_c − r_r − margin) + centering·(r_c + r_r)², per pair (B,).

    Bradley-Terry (arXiv:2203.02155, eq. 1), margin (arXiv:2307.09288, eq. 2), centring (arXiv:2312.09244): scores are
    only determined up to a constant, and the last term picks the one near zero.
    """
    return -logsigmoid(chosen_B - rejected_B - margin) + centering * (chosen_B + rejected_B).square()


def stated_confidence(
    chosen_high_B: Tensor, chosen_low_B: Tensor, rejected_high_B: Tensor, rejected_low_B: Tensor
) -> Tensor:
    """−log σ(r_c⁺ − r_c⁻) − log σ(r_r⁻ − r_r⁺), per pair (B,): the calibration loss of PPO-M (arXiv:2410.09724).

    r⁺ and r⁻ are the scores of the same response with a high and with a low confidence stated at its end. The chosen
    response should state high confidence and the rejected one low confidence.
    """
    return -logsigmoid(chosen_high_B - chosen_low_B) - logsigmoid(rejected_low_B - rejected_high_B)


def correlation(x_N: Tensor, y_N: Tensor) -> Tensor:
    """Pearson's correlation, (), differentiable."""
    x_N, y_N = x_N - x_N.mean(), y_N - y_N.mean()
    covariance = (x_N * y_N).sum()
    variances = x_N.square().sum() * y_N.square().sum()
    return covariance / (variances + NO_SPREAD).sqrt()


def length_split(quality_N: Tensor, length_N: Tensor, tokens_N: Tensor) -> Tensor:
    """|ρ(r_Q, tokens)| − ρ(r_L, tokens), (): ODIN's length loss (arXiv:2402.07319).

    Args:
        quality_N, length_N: scores of responses from the two heads.
        tokens_N: length of the responses.
    """
    tokens_N = tokens_N.to(quality_N.dtype)
    return correlation(quality_N, tokens_N).abs() - correlation(length_N, tokens_N)


def head_overlap(quality_d: Tensor, length_d: Tensor) -> Tensor:
    """|cos(w_Q, w_L)|, (): ODIN's orthogonality loss on the weights of the two heads (arXiv:2402.07319)."""
    return cosine_similarity(quality_d, length_d, dim=0).abs()


def spread_over_pairs(statistic: Tensor, scores_2BA: Tensor, gradient_2BA: Tensor) -> Tensor:
    """Return a term for each pair, (B,), whose mean over all pairs of the step is `statistic` and has its gradient.

    This makes a statistic of a full step, such as a correlation, exact although the step is cut into micro-batches.

    Args:
        statistic: value of the statistic, ().
        scores_2BA: scores of some of the step's pairs (both sides, all heads), differentiable.
        gradient_2BA: derivative of the statistic by these scores, multiplied by the number of pairs of the step.
    """
    surrogate_2BA = gradient_2BA * (scores_2BA - scores_2BA.detach())  # its value is 0, its gradient `gradient_2BA`
    return statistic.detach() + surrogate_2BA.sum(dim=(0, 2))


def squared_error(outputs_BA: Tensor, targets_BA: Tensor) -> Tensor:
    """Mean squared error over a response's A outputs, per response (B,) (HelpSteer2, arXiv:2406.08673, section 3.1).

    Targets are fractions of the scale, 0…1: an error of one point on the scale 1…5 costs 1/16.
    """
    return (outputs_BA - targets_BA).square().mean(dim=1)


def step_loss(logits_N: Tensor, labels_N: Tensor) -> Tensor:
    """−y log σ(z) − (1 − y) log σ(−z), per step (N,), nats.

    Binary cross-entropy of a process reward model (arXiv:2305.20050; arXiv:2312.08935, eq. 2). A soft label y in [0, 1]
    is the probability that the step is right. The loss is then minimal at σ(z) = y, where it equals the entropy of y.
    """
    # logsigmoid of both signs instead of log(1 − σ), which is −∞ for large logits
    return -labels_N * logsigmoid(logits_N) - (1 - labels_N) * logsigmoid(-logits_N)
