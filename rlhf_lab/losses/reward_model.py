"""Reward-model losses: pure functions from scores to one loss per pair."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid


def bradley_terry(chosen_B: Tensor, rejected_B: Tensor, *, margin: float = 0.0, centering: float = 0.0) -> Tensor:
    """−log σ(r_c − r_r − margin) + centering·(r_c + r_r)², per pair (B,).

    Bradley-Terry (arXiv:2203.02155, eq. 1), margin (arXiv:2307.09288, eq. 2), centring (arXiv:2312.09244): scores are
    only determined up to a constant, and the last term picks the one near zero.
    """
    return -logsigmoid(chosen_B - rejected_B - margin) + centering * (chosen_B + rejected_B).square()
