"""Preference pairs as token rows, and the log-probability of their replies."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from rlhf_lab.core.types import Pair
from rlhf_lab.losses.objective import PairTokens
from rlhf_lab.losses.preference import PairLogps
from rlhf_lab.models.encoding import Encoder, Row, TokenBatch
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.models.passes import over_rows

PairRows = tuple[Row, Row]


def pair_rows(encoder: Encoder, pair: Pair, max_length: int) -> PairRows:
    """Both sides of a pair as token rows."""
    return encoder.row(pair.prompt, pair.chosen, max_length), encoder.row(pair.prompt, pair.rejected, max_length)


@torch.no_grad()
def sequence_logps(model: nn.Module, rows: Sequence[Row], device: str, max_tokens: int = 16384) -> torch.Tensor:
    """Log-probability of each reply, nats, (N,) on the CPU."""
    found = torch.zeros(len(rows))
    passes = over_rows(rows, lambda batch: token_logps(model, batch).sum_B().cpu(), max_tokens, device, [model])
    for index, logps_B in passes:
        found[index] = logps_B
    return found


def pair_logps(model: nn.Module, pairs: Sequence[PairRows], device: str) -> PairLogps:
    """Log-probabilities of both replies of each pair, without gradient."""
    both = sequence_logps(model, [row for pair in pairs for row in pair], device)
    return PairLogps(both[0::2], both[1::2])


def pair_batch(pairs: Sequence[PairRows], device: str) -> TokenBatch:
    """All chosen rows, then all rejected rows: (2B, T)."""
    return TokenBatch.from_rows([chosen for chosen, _ in pairs] + [rejected for _, rejected in pairs], device)


def pair_tokens(pairs: Sequence[PairRows], device: str) -> PairTokens:
    """Reply lengths of both sides, float32."""
    sides = zip(*((len(chosen[1]), len(rejected[1])) for chosen, rejected in pairs), strict=True)
    return PairTokens(*(torch.tensor(lengths, dtype=torch.float32, device=device) for lengths in sides))


def mismatched_rows(pairs: Sequence[PairRows], max_length: int) -> list[Row]:
    """Each row's prompt with the reply of the row before it: all chosen rows in a ring with all rejected ones.

    The replies are those of the pairs, and none stands after the prompt of its own pair if there are two pairs or more.
    A row that gets too long loses its end.
    """
    rows = [chosen for chosen, _ in pairs] + [rejected for _, rejected in pairs]
    return [(prompt, rows[i - 1][1][: max(max_length - len(prompt), 1)]) for i, (prompt, _) in enumerate(rows)]


def mismatched_kl(
    model: nn.Module, reference: nn.Module, pairs: Sequence[PairRows], max_length: int, device: str
) -> torch.Tensor:
    """KTO's z_ref (arXiv:2402.01306, §4.1): max(0, mean of log π/π_ref over mismatched rows), nats, no gradient, ().

    A single pair has no other prompt: its estimate is 0.
    """
    if len(pairs) < 2:
        return torch.zeros((), device=device)
    rows = mismatched_rows(pairs, max_length)
    gap_N = sequence_logps(model, rows, device) - sequence_logps(reference, rows, device)
    return gap_N.mean().clamp(min=0).to(device)


def pair_length(pair: PairRows) -> int:
    """Tokens of the longer row: what a padded batch pays for the pair."""
    return max(len(prompt) + len(reply) for prompt, reply in pair)
