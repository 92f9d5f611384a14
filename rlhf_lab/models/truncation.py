"""Tokens that may be sampled: top-k, top-p and a set of allowed ones, for the sampler and the log-probabilities alike.

The distribution that is trained must be the one that was sampled from, or ratios do not start at 1. So both sides cut
the same logits by the same rule. As the policy moves, so do its own top-k and top-p: a sampled token that has left
them still counts as one of them, and its probability stays above 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Truncation:
    """Applied in this order, to logits that are divided by the temperature already.

    Attributes:
        allowed: ids of the only tokens that may be sampled; empty allows all.
        top_k: only the k likeliest tokens; 0 keeps all.
        top_p: only the likeliest tokens that together have at least this probability, in (0, 1]
            (nucleus sampling, arXiv:1904.09751, eq. 2).
    """

    allowed: tuple[int, ...] = ()
    top_k: int = 0
    top_p: float = 1.0

    def __bool__(self) -> bool:
        return bool(self.allowed or self.top_k or self.top_p < 1)

    def apply_(self, z_NV: torch.Tensor, target_N: torch.Tensor | None = None) -> torch.Tensor:
        """Set the logits of all other tokens to −∞, in place.

        Args:
            z_NV: float32 logits over the temperature.
            target_N: tokens that were sampled and always stay; None while sampling.
        """
        target_z_N1 = None if target_N is None else z_NV.gather(1, target_N[:, None])
        if self.allowed:
            forbidden_V = torch.ones(z_NV.shape[1], dtype=torch.bool, device=z_NV.device)
            forbidden_V[torch.tensor(self.allowed, device=z_NV.device)] = False
            z_NV.masked_fill_(forbidden_V, -torch.inf)
        if 0 < self.top_k < z_NV.shape[1]:
            # tokens as likely as the k-th stay too: which of them came first must not depend on rounding
            least_N1 = z_NV.topk(self.top_k, dim=1).values[:, -1:]
            z_NV.masked_fill_(z_NV < least_N1, -torch.inf)
        if self.top_p < 1:
            sorted_NV = z_NV.sort(dim=1, descending=True).values
            p_NV = sorted_NV.softmax(1)
            mass_above_NV = p_NV.cumsum(1) - p_NV
            kept_N1 = (mass_above_NV < self.top_p).sum(1, keepdim=True)  # at least the likeliest token
            least_N1 = sorted_NV.gather(1, kept_N1 - 1)
            z_NV.masked_fill_(z_NV < least_N1, -torch.inf)
        if target_N is not None and target_z_N1 is not None:
            z_NV.scatter_(1, target_N[:, None], target_z_N1)
        return z_NV


EVERYTHING = Truncation()
"""Every token may be sampled."""
