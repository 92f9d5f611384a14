"""What several algorithms do: start a policy, score rows without gradient, pair batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from rlhf_lab.losses.preference import PairLogps
from rlhf_lab.models.build import load_encoder, load_policy, scratch_policy
from rlhf_lab.models.encoding import Encoder, Row, TokenBatch, length_batches
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.models.settings import HuggingFace
from rlhf_lab.models.tokenizer import train_tokenizer
from rlhf_lab.train.run import Run
from rlhf_lab.types import Corpus, Pair

PairRows = tuple[Row, Row]
HELD_OUT_PAIRS = 1000
"""Held-out pairs that the audits of SFT and reward models use at most."""


def start_policy(run: Run) -> tuple[nn.Module, Encoder]:
    """The policy a first stage trains: `needs.policy`, else the configured Hugging Face model, else a new small one."""
    settings = run.config.model
    source = run.needs.get("policy") or (settings.path if isinstance(settings, HuggingFace) else None)
    if source:
        return load_policy(source, settings, device=run.device), load_encoder(source, settings)
    texts = (text for pair in run.corpus.train for text in (pair.prompt, f" {pair.chosen}", f" {pair.rejected}"))
    tokenizer = train_tokenizer(texts, settings.vocabulary)
    return scratch_policy(settings, tokenizer, run.seed("init")).to(run.device), Encoder(tokenizer)


def pair_rows(encoder: Encoder, pair: Pair, max_length: int) -> PairRows:
    """Both sides of a pair as token rows."""
    return encoder.row(pair.prompt, pair.chosen, max_length), encoder.row(pair.prompt, pair.rejected, max_length)


def corpus_report(corpus: Corpus, encoder: Encoder) -> dict[str, Any]:
    """How the data was read and tokenised, as flat metrics."""
    flat: dict[str, Any] = {f"encoding/{name}": count for name, count in encoder.counts.items()}
    for split, report in corpus.report.items():
        flat |= {f"data/{split}/rows": report.rows, f"data/{split}/kept": report.kept}
        flat |= {f"data/{split}/dropped/{reason}": count for reason, count in report.dropped.items()}
    return flat


@torch.no_grad()
def sequence_logps(model: nn.Module, rows: Sequence[Row], device: str, max_tokens: int = 16384) -> torch.Tensor:
    """Log-probability of each reply, nats, (N,) on the CPU."""
    found = torch.zeros(len(rows))
    for index, batch in length_batches(rows, max_tokens, device):
        found[index] = token_logps(model, batch).sum_B().cpu()
    return found


def pair_logps(model: nn.Module, pairs: Sequence[PairRows], device: str) -> PairLogps:
    """Log-probabilities of both replies of each pair, without gradient."""
    both = sequence_logps(model, [row for pair in pairs for row in pair], device)
    return PairLogps(both[0::2], both[1::2])


def pair_batch(pairs: Sequence[PairRows], device: str) -> TokenBatch:
    """All chosen rows, then all rejected rows: (2B, T)."""
    return TokenBatch.from_rows([chosen for chosen, _ in pairs] + [rejected for _, rejected in pairs], device)


def pair_length(pair: PairRows) -> int:
    """Tokens of the longer row: what a padded batch pays for the pair."""
    return max(len(prompt) + len(reply) for prompt, reply in pair)
