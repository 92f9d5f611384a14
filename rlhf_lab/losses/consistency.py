"""Agreement of two rankings of the same responses."""

from __future__ import annotations

import torch
from torch import Tensor


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
