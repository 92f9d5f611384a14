"""Preference pairs as token rows, and the log-probabilities of their responses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from rlhf_lab.core.transfer import to_device
from rlhf_lab.core.types import Pair
from rlhf_lab.data.generated import UNFINISHED
from rlhf_lab.losses.objective import PairTokens
from rlhf_lab.losses.preference import PairLogps
from rlhf_lab.models.encoding import Encoder, Row, TokenBatch
from rlhf_lab.models.logprobs import sum_rows, token_logps
from rlhf_lab.models.passes import over_rows
from rlhf_lab.models.steps import end_tokens

PairRows = tuple[Row, Row]


def pair_rows(encoder: Encoder, pair: Pair, max_length: int) -> PairRows:
    """Return both sides of a pair as token rows; those of an unfinished pair (a pair of steps) have no EOS.

    A prompt that is too long is cut for the longer response, so that both sides have the same prompt.
    """
    responses = encoder.response(pair.chosen), encoder.response(pair.rejected)
    longest = max(map(len, responses))
    chosen, rejected = (encoder.fit(pair.prompt, response, max_length, longest) for response in responses)
    if not pair.meta.get(UNFINISHED):
        return chosen, rejected
    return _without_end(encoder, pair.chosen, chosen), _without_end(encoder, pair.rejected, rejected)


def _without_end(encoder: Encoder, response: str, row: Row) -> Row:
    """Return a row up to the last character of its response, without EOS and without what a chat template adds."""
    prompt_ids, response_ids = row
    [last] = end_tokens(encoder, response, [len(response)])
    return prompt_ids, response_ids[: last + 1]


def response_logps(model: nn.Module, batch: TokenBatch, codebooks: int = 0) -> torch.Tensor:
    """Return the log-probability of each response, nats, (B,), or of each of its codebooks, (B, codebooks).

    In a stream of codec tokens the codebooks alternate: token t belongs to codebook t modulo `codebooks`.
    """
    logps = token_logps(model, batch)
    if not codebooks:
        return logps.sum_B()
    row_N, column_N = batch.targets()
    codebook_N = (column_N - batch.prompt_len_B[row_N]) % codebooks
    # one bin per (row, codebook)
    bin_N = row_N * codebooks + codebook_N
    return sum_rows(logps.logps_N, bin_N, logps.rows * codebooks).view(-1, codebooks)


@torch.no_grad()
def sequence_logps(
    model: nn.Module, rows: Sequence[Row], device: str, max_tokens: int = 16384, codebooks: int = 0
) -> torch.Tensor:
    """Return the log-probability of each response, nats, (N,) on the CPU; (N, codebooks) with codebooks."""
    logps_N = torch.zeros((len(rows), codebooks) if codebooks else (len(rows),))

    def batch_logps(batch: TokenBatch) -> torch.Tensor:
        return response_logps(model, batch, codebooks).cpu()

    for indices, logps_B in over_rows(rows, batch_logps, max_tokens, device, [model], title="pairs"):
        logps_N[indices] = logps_B
    return logps_N


def pair_logps(model: nn.Module, pairs: Sequence[PairRows], device: str, codebooks: int = 0) -> PairLogps:
    """Return the log-probabilities of both responses of each pair, without gradient; see `sequence_logps`."""
    alternating_rows = [row for pair in pairs for row in pair]  # chosen, rejected, chosen, …
    logps = sequence_logps(model, alternating_rows, device, codebooks=codebooks)
    return PairLogps(chosen=logps[0::2], rejected=logps[1::2])


def pair_batch(pairs: Sequence[PairRows], device: str) -> TokenBatch:
    """Return a batch of all chosen rows, then all rejected rows: (2B, T)."""
    return TokenBatch.from_rows(_chosen_then_rejected(pairs), device)


def _chosen_then_rejected(pairs: Sequence[PairRows]) -> list[Row]:
    return [chosen for chosen, _ in pairs] + [rejected for _, rejected in pairs]


def pair_tokens(pairs: Sequence[PairRows], device: str) -> PairTokens:
    """Return the response lengths of both sides, float32."""
    chosen, rejected = ([len(pair[side][1]) for pair in pairs] for side in (0, 1))
    return PairTokens(to_device(chosen, device, torch.float32), to_device(rejected, device, torch.float32))


def mismatched_rows(pairs: Sequence[PairRows], max_length: int) -> list[Row]:
    """Combine each row's prompt with the previous row's response, over all chosen and then all rejected rows.

    The first row gets the last row's response. With two pairs or more, no response follows the prompt of its own pair.
    """
    return shifted_rows(_chosen_then_rejected(pairs), max_length)


def shifted_rows(rows: Sequence[Row], max_length: int) -> list[Row]:
    """Combine each row's prompt with the previous row's response. A row that becomes too long loses its end."""
    # rows[i - 1] is the last row for i = 0
    return [(prompt, rows[i - 1][1][: max(max_length - len(prompt), 1)]) for i, (prompt, _) in enumerate(rows)]


def mismatched_kl(
    model: nn.Module, reference: nn.Module, pairs: Sequence[PairRows], max_length: int, device: str
) -> torch.Tensor:
    """Return KTO's z_ref (arXiv:2402.01306, §4.1): max(0, mean of log π/π_ref over mismatched rows).

    In nats, without gradient, shape (). A single pair has no other prompt, so its estimate is 0.
    """
    if len(pairs) < 2:
        return torch.zeros((), device=device)
    return positive_kl(model, reference, mismatched_rows(pairs, max_length), device)


def positive_kl(model: nn.Module, reference: nn.Module, rows: Sequence[Row], device: str) -> torch.Tensor:
    """Return max(0, mean of log π/π_ref over the responses of rows), nats, without gradient, shape ()."""
    log_ratio_N = sequence_logps(model, rows, device) - sequence_logps(reference, rows, device)
    return log_ratio_N.mean().clamp(min=0).to(device)


def pair_length(pair: PairRows) -> int:
    """Return the number of tokens of the longer row, which determines the pair's cost in a padded batch."""
    return max(len(prompt) + len(response) for prompt, response in pair)
