"""Draws tokens: inverts the cumulative distribution, which costs a tenth of `torch.multinomial`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rlhf_lab.models.truncation import EVERYTHING, Truncation

ONE_LEVEL = 2048
"""Largest vocabulary searched in one running sum; measured, see docs/design/003-speed.md."""


def draw(
    logits_RV: Tensor, noise_R: Tensor, temperature: float, truncation: Truncation = EVERYTHING
) -> tuple[Tensor, Tensor]:
    """One token per row by inverting the cumulative distribution at `noise_R` in [0, 1), and its log-probability.

    A large vocabulary is searched in two levels, √V classes of √V tokens, because a running sum over all of it takes
    longer than the softmax. Class c holds the tokens c, c + classes, c + 2·classes, …; its mass adds up whole rows.

    Temperature 0 takes the most likely token; its log-probability is then at temperature 1.
    """
    scaled_RV = logits_RV if temperature in (0, 1) else logits_RV / temperature
    if truncation:
        scaled_RV = truncation.apply_(scaled_RV.to(torch.float32, copy=True))
    if temperature == 0:
        token_R = scaled_RV.argmax(1)
        return token_R, scaled_RV.log_softmax(1, dtype=torch.float32).gather(1, token_R[:, None])[:, 0]
    p_RV = scaled_RV.softmax(1, dtype=torch.float32)
    vocab = p_RV.shape[1]
    noise_R1 = noise_R[:, None]
    if vocab <= ONE_LEVEL:
        token_R1 = _find_share(p_RV.cumsum(1), noise_R1)[0]
        return token_R1[:, 0], p_RV.gather(1, token_R1).log_()[:, 0]
    classes = 16 * math.ceil(vocab**0.5 / 16)  # √V, rounded up to a multiple of 16
    in_full_rows = vocab // classes * classes  # tokens; the last row of the (…, classes) table may be incomplete
    mass_RC = p_RV[:, :in_full_rows].unflatten(1, (-1, classes)).sum(1)
    mass_RC[:, : vocab - in_full_rows] += p_RV[:, in_full_rows:]
    class_R1, mass_above_R1 = _find_share(mass_RC.cumsum(1), noise_R1)
    members = class_R1 + torch.arange(0, vocab, classes, device=p_RV.device)
    member_p = p_RV.gather(1, members.clamp(max=vocab - 1)).masked_fill_(members >= vocab, 0.0)
    # where the target lies within the class is as good as fresh noise: the token needs no second random number
    share_within_R1 = 1 - mass_above_R1 / mass_RC.gather(1, class_R1)
    token_R1 = class_R1 + classes * _find_share(member_p.cumsum(1), share_within_R1)[0]
    return token_R1[:, 0], p_RV.gather(1, token_R1).log_()[:, 0]


def _find_share(cumulative_RN: Tensor, noise_R1: Tensor) -> tuple[Tensor, Tensor]:
    """Index i of the entry that holds the share `noise_R1` of the total, and the mass left above it within entry i.

    The target stays below the total, so an index of weight 0 is never drawn.
    """
    # clamped, because rounding can bring the share of the second level to 1 or out of [0, 1)
    target_R1 = noise_R1.clamp(0.0, 1 - 2**-23) * cumulative_RN[:, -1:]
    index_R1 = torch.searchsorted(cumulative_RN, target_R1, right=True).clamp_(max=cumulative_RN.shape[1] - 1)
    return index_R1, cumulative_RN.gather(1, index_R1) - target_R1
