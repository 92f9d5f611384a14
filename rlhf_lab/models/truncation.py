"""Restriction of the tokens that may be sampled: top-k, top-p and a set of allowed tokens.

The trained distribution must be the sampled one, or ratios do not start at 1. The sampler and the log-probabilities
therefore truncate the same logits with the same code. As the policy changes, so do its top-k and top-p tokens. A
sampled token that is no longer among them still counts as one of them, so its probability stays above 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Truncation:
    """Restrictions in the order of application, to logits that are already divided by the temperature.

    Attributes:
        allowed: ids of the only tokens that may be sampled; empty allows all.
        top_k: number of most likely tokens that are kept; 0 keeps all.
        top_p: minimum total probability of the most likely tokens that are kept, in (0, 1]
            (nucleus sampling, arXiv:1904.09751, eq. 2).
    """

    allowed: tuple[int, ...] = ()
    top_k: int = 0
    top_p: float = 1.0

    def __bool__(self) -> bool:
        return bool(self.allowed or self.top_k or self.top_p < 1)

    def apply_(self, z_NV: torch.Tensor, target_N: torch.Tensor | None = None) -> torch.Tensor:
        """Set the logits of all tokens that the restrictions exclude to −∞, in place.

        Args:
            z_NV: float32 logits, already divided by the temperature.
            target_N: sampled tokens, which always stay; None while sampling.
        """
        # saved before the masks below overwrite it
        target_z_N1 = None if target_N is None else z_NV.gather(1, target_N[:, None])
        if self.allowed:
            forbidden_V = torch.ones(z_NV.shape[1], dtype=torch.bool, device=z_NV.device)
            forbidden_V[torch.tensor(self.allowed, device=z_NV.device)] = False
            z_NV.masked_fill_(forbidden_V, -torch.inf)
        if 0 < self.top_k < z_NV.shape[1]:
            # ties with the k-th token stay too, so that the result does not depend on their order after rounding
            lower_N1 = z_NV.topk(self.top_k, dim=1).values[:, -1:]
            z_NV.masked_fill_(z_NV < lower_N1, -torch.inf)
        if self.top_p < 1:
            sorted_NV = z_NV.sort(dim=1, descending=True).values
            p_NV = sorted_NV.softmax(1)
            # a token stays if the tokens above it have less than top_p, so the most likely one always stays
            mass_above_NV = p_NV.cumsum(1) - p_NV
            kept_N1 = (mass_above_NV < self.top_p).sum(1, keepdim=True)
            lower_N1 = sorted_NV.gather(1, kept_N1 - 1)
            z_NV.masked_fill_(z_NV < lower_N1, -torch.inf)
        # restore the logits of sampled tokens that are no longer among the most likely ones
        if target_N is not None and target_z_N1 is not None:
            z_NV.scatter_(1, target_N[:, None], target_z_N1)
        return z_NV


EVERYTHING = Truncation()
"""No restriction: every token may be sampled."""
