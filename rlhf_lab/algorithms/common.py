"""What several algorithms do: start a policy, score rows without gradient, pair batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from rlhf_lab.losses.objective import PairTokens
from rlhf_lab.losses.preference import PairLogps
from rlhf_lab.models.build import load_encoder, load_policy, scratch_policy
from rlhf_lab.models.divided import undivided
from rlhf_lab.models.encoding import Encoder, Row, TokenBatch
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.models.lora import trainable
from rlhf_lab.models.passes import over_rows
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
        model, encoder = load_policy(source, settings, device=run.load_device), load_encoder(source, settings)
        return trainable(model, settings.lora, run.seed("lora")), encoder
    texts = (text for pair in run.corpus.train for text in (pair.prompt, f" {pair.chosen}", f" {pair.rejected}"))
    tokenizer = train_tokenizer(texts, settings.vocabulary)
    return scratch_policy(settings, tokenizer, run.seed("init")).to(run.load_device), Encoder(tokenizer)


def model_size(model: nn.Module) -> dict[str, float]:
    """Parameters, those that train, and MiB of what restores the trained model: all of it, or what lies on its base."""
    parameters = list(undivided(model).parameters())
    trained = [p for p in parameters if p.requires_grad]
    return {
        "parameters": sum(p.numel() for p in parameters),
        "parameters/trained": sum(p.numel() for p in trained),
        "checkpoint_mib": sum(p.numel() * p.element_size() for p in trained) / 2**20,
    }


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
