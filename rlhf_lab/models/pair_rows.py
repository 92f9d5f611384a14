"""Preference pairs as token rows, and the log-probability of their replies."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from rlhf_lab.core.transfer import to_device
from rlhf_lab.core.types import Pair
from rlhf_lab.losses.objective import PairTokens
from rlhf_lab.losses.preference import PairLogps
from rlhf_lab.models.encoding import Encoder, Row, TokenBatch
from rlhf_lab.models.logprobs import sum_rows, token_logps
from rlhf_lab.models.passes import over_rows

PairRows = tuple[Row, Row]


def pair_rows(encoder: Encoder, pair: Pair, max_length: int) -> PairRows:
    """Both sides of a pair as token rows."""
    return encoder.row(pair.prompt, pair.chosen, max_length), encoder.row(pair.prompt, pair.rejected, max_length)


def reply_logps(model: nn.Module, batch: TokenBatch, codebooks: int = 0) -> torch.Tensor:
    """Log-probability of each reply, nats, (B,); of each of its codebooks, (B, codebooks), where there are some.

    The tokens of a codec's stream are those of its codebooks in turn; see `packs/speech/sound/stream.py`.
    """
    logps = token_logps(model, batch)
    if not codebooks:
        return logps.sum_B()
    row_N, column_N = batch.targets()
    codebook_N = (column_N - batch.prompt_len_B[row_N]) % codebooks
    sums = sum_rows(logps.logps_N, row_N * codebooks + codebook_N, logps.rows * codebooks)
    return sums.view(-1, codebooks)


@torch.no_grad()
def sequence_logps(
    model: nn.Module, rows: Sequence[Row], device: str, max_tokens: int = 16384, codebooks: int = 0
) -> torch.Tensor:
    """Log-probability of each reply, nats, (N,) on the CPU; (N, codebooks) where there are some."""
    logps_N = torch.zeros(len(rows), codebooks) if codebooks else torch.zeros(len(rows))

    def batch_logps(batch: TokenBatch) -> torch.Tensor:
        return reply_logps(model, batch, codebooks).cpu()

    for indices, logps_B in over_rows(rows, batch_logps, max_tokens, device, [model]):
        logps_N[indices] = logps_B
    return logps_N


def pair_logps(model: nn.Module, pairs: Sequence[PairRows], device: str, codebooks: int = 0) -> PairLogps:
    """Log-probabilities of both replies of each pair, without gradient, as `sequence_logps` gives them."""
    alternating_rows = [row for pair in pairs for row in pair]  # chosen, rejected, chosen, …
    logps = sequence_logps(model, alternating_rows, device, codebooks=codebooks)
    return PairLogps(chosen=logps[0::2], rejected=logps[1::2])


def pair_batch(pairs: Sequence[PairRows], device: str) -> TokenBatch:
    """All chosen rows, then all rejected rows: (2B, T)."""
    return TokenBatch.from_rows(_chosen_then_rejected(pairs), device)


def _chosen_then_rejected(pairs: Sequence[PairRows]) -> list[Row]:
    return [chosen for chosen, _ in pairs] + [rejected for _, rejected in pairs]


def pair_tokens(pairs: Sequence[PairRows], device: str) -> PairTokens:
    """Reply lengths of both sides, float32."""
    chosen_lengths = [len(chosen_reply) for (_, chosen_reply), _ in pairs]
    rejected_lengths = [len(rejected_reply) for _, (_, rejected_reply) in pairs]
    return PairTokens(
        chosen=to_device(chosen_lengths, device, torch.float32),
        rejected=to_device(rejected_lengths, device, torch.float32),
    )


def mismatched_rows(pairs: Sequence[PairRows], max_length: int) -> list[Row]:
    """Each row's prompt with the reply of the row before it: all chosen rows in a ring with all rejected ones.

    The replies are those of the pairs, and none stands after the prompt of its own pair if there are two pairs or more.
    """
    return shifted_rows(_chosen_then_rejected(pairs), max_length)


def shifted_rows(rows: Sequence[Row], max_length: int) -> list[Row]:
    """Each row's prompt with the reply of the row before it. A row that gets too long loses its end."""
    mismatched = []
    for i, (prompt, _) in enumerate(rows):
        reply = rows[i - 1][1][: max(max_length - len(prompt), 1)]
        mismatched.append((prompt, reply))
    return mismatched


def mismatched_kl(
    model: nn.Module, reference: nn.Module, pairs: Sequence[PairRows], max_length: int, device: str
) -> torch.Tensor:
    """KTO's z_ref (arXiv:2402.01306, §4.1): max(0, mean of log π/π_ref over mismatched rows), nats, no gradient, ().

    A single pair has no other prompt: its estimate is 0.
    """
    if len(pairs) < 2:
        return torch.zeros((), device=device)
    return positive_kl(model, reference, mismatched_rows(pairs, max_length), device)


def positive_kl(model: nn.Module, reference: nn.Module, rows: Sequence[Row], device: str) -> torch.Tensor:
    """max(0, mean of log π/π_ref over the replies of rows), nats, no gradient, ()."""
    log_ratio_N = sequence_logps(model, rows, device) - sequence_logps(reference, rows, device)
    return log_ratio_N.mean().clamp(min=0).to(device)


def pair_length(pair: PairRows) -> int:
    """Tokens of the longer row: what a padded batch pays for the pair."""
    return max(len(prompt) + len(reply) for prompt, reply in pair)
