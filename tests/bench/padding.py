"""Fraction of padding in rows of real dialogue's lengths, and time of passes without it.

python tests/bench/padding.py [--size 1M|10M] [--rounds 5] [--lengths FILE]

Lengths are sampled from log-normal distributions, clipped: prompts of median 80 tokens (σ = 0.8, 8 to 256) and
responses of median 40 (σ = 0.8, 2 to 160). A file has a line `prompt_tokens response_tokens` for each row instead: the
prompt of group or pair i is as long as that of line i, and its responses are those of consecutive lines. The timing is
of forward and backward of the log-probabilities, each method in turn; `faster` is the gain of the chosen method over
full rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from shapes import SIZES, build_model
from timing import race
from torch import nn

from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.models.packing import Lengths
from rlhf_lab.models.shared_prompt import best_packing, can_pack, can_take_two_passes, computed_as

VOCABULARY = 1000
PROMPT_MEDIAN, PROMPT_RANGE = 80, (8, 256)
REPLY_MEDIAN, REPLY_RANGE = 40, (2, 160)
SIGMA = 0.8
BATCHES = {"GRPO, 8 prompts × 8 replies": (8, 8), "DPO, 16 pairs": (16, 2), "SFT, 32 rows": (32, 1)}
"""Name → (prompts, responses to each)."""

LengthPair = tuple[int, int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(SIZES), default="1M")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lengths", type=Path, help="file of rows: prompt_tokens reply_tokens")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = build_model("llama", options.size, VOCABULARY)
    given = read_lengths(options.lengths) if options.lengths else None
    table = Table(title=f"Forward and backward, llama {options.size}, CPU seconds, median of {options.rounds} rounds")
    for column in ("batch", "padding", "packed slots", "whole rows", "two passes", "packed rows", "chosen", "faster"):
        table.add_column(column, justify="left" if column == "batch" else "right")
    for name, (prompts, responses) in BATCHES.items():
        lengths = given or sample_lengths(prompts * responses, np.random.default_rng(0))
        table.add_row(name, *measure(model, batch_of(lengths, prompts, responses), options.rounds))
    Console(width=None if Console().is_terminal else 130).print(table)


def sample_lengths(rows: int, rng: np.random.Generator) -> list[LengthPair]:
    """(prompt, response) tokens of rows in the shape of dialogue."""
    prompts = PROMPT_MEDIAN * np.exp(rng.normal(0, SIGMA, rows))
    responses = REPLY_MEDIAN * np.exp(rng.normal(0, SIGMA, rows))
    prompt_lengths = np.clip(prompts, *PROMPT_RANGE).astype(int).tolist()
    reply_lengths = np.clip(responses, *REPLY_RANGE).astype(int).tolist()
    return list(zip(prompt_lengths, reply_lengths, strict=True))


def read_lengths(path: Path) -> list[LengthPair]:
    """(prompt, response) tokens of each line of a file."""
    pairs = []
    for line in path.read_text().splitlines():
        prompt, response = line.split()
        pairs.append((int(prompt), int(response)))
    return pairs


def batch_of(lengths: Sequence[LengthPair], prompts: int, responses: int) -> TokenBatch:
    """Random tokens: each prompt with its responses, as long as the first rows of `lengths` say."""
    if len(lengths) < prompts * responses:
        raise SystemExit(
            f"{len(lengths)} rows of lengths; a batch of {prompts} × {responses} needs {prompts * responses}"
        )
    generator = torch.Generator().manual_seed(0)

    def ids(count: int) -> list[int]:
        return torch.randint(5, VOCABULARY, (count,), generator=generator).tolist()

    rows = []
    for number in range(prompts):
        prompt = ids(lengths[number][0])
        for _, reply_length in lengths[number * responses : (number + 1) * responses]:
            rows.append((prompt, ids(reply_length)))
    return TokenBatch.from_rows(rows)


def measure(model: nn.Module, batch: TokenBatch, rounds: int) -> list[str]:
    """Fraction of padding, slots of the packing over those of padded rows, and seconds of each method."""
    backbone: nn.Module = model.base_model  # type: ignore[assignment]
    can_share = batch.prompt_of is not None and can_take_two_passes(backbone)
    packing = best_packing(backbone.config, batch, "two passes" if can_share else "whole rows")
    padded = batch.tokens_BT.numel()
    padding = 1 - float(batch.length_B.sum()) / padded
    smallest = Lengths.of(batch).minimum
    assert can_pack(backbone)
    contestants = {"whole rows": partial(computed, model, batch, "whole rows"), "chosen": partial(update, model, batch)}
    if can_share:
        contestants["two passes"] = partial(computed, model, batch, "two passes")
    seconds = race(contestants, rounds)
    medians = {name: float(np.median(values)) for name, values in seconds.items()}
    slots = f"{packing.slots / padded:.2f} (at best {smallest / padded:.2f})" if packing else "not packed"
    times = [f"{medians[name]:.3f}" if name in medians else "–" for name in ("whole rows", "two passes")]
    times.append(f"{medians['chosen']:.3f}" if packing else "–")
    unpacked = "two passes" if can_share else "whole rows"
    chosen = "packed rows" if packing else unpacked
    return [f"{padding:.0%}", slots, *times, chosen, f"{medians['whole rows'] / medians['chosen']:.2f}×"]


def update(model: nn.Module, batch: TokenBatch) -> None:
    """Forward and backward, computed by the method that the product chooses."""
    token_logps(model, batch).logps_N.sum().backward()
    model.zero_grad()


def computed(model: nn.Module, batch: TokenBatch, way: str) -> None:
    """Forward and backward, computed by one method."""
    with computed_as(way):  # type: ignore[arg-type]
        update(model, batch)


if __name__ == "__main__":
    main()
