"""Sampling of tokens by inverting the cumulative distribution, at a tenth of the cost of `torch.multinomial`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rlhf_lab.models.truncation import EVERYTHING, Truncation

ONE_LEVEL = 2048
"""Largest vocabulary that is searched with a single cumulative sum; measured, see docs/design/003-speed.md."""


def draw(
    logits_RV: Tensor, noise_R: Tensor, temperature: float, truncation: Truncation = EVERYTHING
) -> tuple[Tensor, Tensor]:
    """Return one token per row and its log-probability, by inverting the cumulative distribution at `noise_R`.

    A large vocabulary is searched in two levels, √V classes of √V tokens, because a cumulative sum over the entire
    vocabulary takes longer than the softmax. Class c contains the tokens c, c + classes, c + 2·classes, …: the masses
    of all classes are the sum over the rows of a (√V, classes) table.

    Temperature 0 takes the most likely token; its log-probability is then at temperature 1.

    Args:
        noise_R: uniform numbers in [0, 1).
    """
    scaled_RV = logits_RV if temperature in (0, 1) else logits_RV / temperature
    if truncation:
        scaled_RV = truncation.apply_(scaled_RV.to(torch.float32, copy=True))
    if temperature == 0:
        token_R = scaled_RV.argmax(1)
        logp_RV = scaled_RV.log_softmax(1, dtype=torch.float32)
        return token_R, logp_RV.gather(1, token_R[:, None])[:, 0]
    p_RV = scaled_RV.softmax(1, dtype=torch.float32)
    vocab = p_RV.shape[1]
    noise_R1 = noise_R[:, None]
    if vocab <= ONE_LEVEL:
        token_R1 = _find_fraction(p_RV.cumsum(1), noise_R1)[0]
        return token_R1[:, 0], p_RV.gather(1, token_R1).log_()[:, 0]
    classes = 16 * math.ceil(vocab**0.5 / 16)  # √V, rounded up to a multiple of 16
    # tokens in complete rows: the last row of the (…, classes) table may be incomplete
    in_full_rows = vocab // classes * classes
    mass_RC = p_RV[:, :in_full_rows].unflatten(1, (-1, classes)).sum(1)
    mass_RC[:, : vocab - in_full_rows] += p_RV[:, in_full_rows:]
    class_R1, mass_above_R1 = _find_fraction(mass_RC.cumsum(1), noise_R1)
    members = class_R1 + torch.arange(0, vocab, classes, device=p_RV.device)
    # the table has more entries than the vocabulary has tokens; the excess entries get probability 0
    member_p = p_RV.gather(1, members.clamp(max=vocab - 1)).masked_fill_(members >= vocab, 0.0)
    # The position of the target within its class is uniform again, so the token needs no second random number.
    fraction_within_R1 = 1 - mass_above_R1 / mass_RC.gather(1, class_R1)
    token_R1 = class_R1 + classes * _find_fraction(member_p.cumsum(1), fraction_within_R1)[0]
    return token_R1[:, 0], p_RV.gather(1, token_R1).log_()[:, 0]


def _find_fraction(cumulative_RN: Tensor, noise_R1: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first index i whose cumulative mass exceeds `noise_R1` · total, and the excess, each (R, 1).

    The target stays below the total, so an index of weight 0 is never sampled.
    """
    # clamped, because rounding can bring the fraction of the second level to 1 or outside [0, 1)
    below_one_R1 = noise_R1.clamp(0.0, 1 - 2**-23)  # strictly below 1 in float32
    target_R1 = below_one_R1 * cumulative_RN[:, -1:]
    last = cumulative_RN.shape[1] - 1
    index_R1 = torch.searchsorted(cumulative_RN, target_R1, right=True).clamp_(max=last)
    return index_R1, cumulative_RN.gather(1, index_R1) - target_R1
