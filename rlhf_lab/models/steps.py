"""Tokens at which the steps of a response end, and the scores of a head at these tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.transfer import to_device
from rlhf_lab.models.encoding import Encoder, Row, TokenBatch
from rlhf_lab.models.sharded import within
from rlhf_lab.models.weights import scalar_head


@dataclass(frozen=True, slots=True)
class StepRow:
    """A prompt, a response, and the tokens at which the response's steps end.

    Attributes:
        ends: index among the response's tokens of each step's last token; truncated steps are missing.
    """

    row: Row
    ends: tuple[int, ...]

    @property
    def columns(self) -> list[int]:
        """Column of the last token of each step in the row."""
        return [len(self.row[0]) + end for end in self.ends]

    @property
    def last(self) -> int:
        """Column of the last token of the row."""
        return sum(map(len, self.row)) - 1


def step_row(
    encoder: Encoder, prompt: str, response: str, lines: Sequence[tuple[int, int]], max_length: int
) -> StepRow:
    """Encode a row as all other stages do, with the token at which each of its lines ends.

    Args:
        lines: (start, end) of the steps in the response, ordered and not overlapping.
    """
    row = encoder.row(prompt, response, max_length)
    ends = end_tokens(encoder, response, [end for _, end in lines])
    return StepRow(row, tuple(end for end in ends if end < len(row[1])))  # without steps that are cut off


def end_tokens(encoder: Encoder, response: str, ends: Sequence[int]) -> list[int]:
    """Return, for each of `ends`, the index of the response token that contains the character before it.

    A fast tokenizer reports which characters each token covers. With a slow one, the tokens of the text up to the end
    of a step are counted. They have to be the first tokens of the full response, otherwise DataError is raised.
    """
    leading_space = "" if encoder.chat else " "  # as in Encoder.response
    text = leading_space + response
    tokenizer = encoder.tokenizer
    options = {"add_special_tokens": False, "split_special_tokens": True}
    end_positions: list[int] = []
    if tokenizer.is_fast:
        spans = tokenizer(text, return_offsets_mapping=True, **options)["offset_mapping"]
        position = 0  # not reset between steps, because they are in order
        for end in ends:
            last_character = len(leading_space) + end - 1
            # the last token that starts at or before the step's last character contains it
            while position + 1 < len(spans) and spans[position + 1][0] <= last_character:
                position += 1
            end_positions.append(position)
        return end_positions
    all_ids = tokenizer(text, **options)["input_ids"]
    for end in ends:
        ids_so_far = tokenizer(text[: len(leading_space) + end], **options)["input_ids"]
        if ids_so_far != all_ids[: len(ids_so_far)]:
            raise DataError(
                f"the tokenizer merges the end of the step {response[:end].splitlines()[-1]!r} with the text after it "
                "and does not report character offsets; use a fast tokenizer (tokenizer.json)"
            )
        end_positions.append(len(ids_so_far) - 1)
    return end_positions


def step_logits(model: nn.Module, batch: TokenBatch) -> Tensor:
    """Return the scalar head's output at each token, (B, T), float32, differentiable; it depends on no later token."""

    def run() -> Tensor:
        body: Any = model.base_model
        return scalar_head(model, body(input_ids=batch.tokens_BT, use_cache=False).last_hidden_state)[..., 0]

    return within(model, run)


def step_positions(columns: Sequence[Sequence[int]], device: str) -> tuple[Tensor, Tensor]:
    """Concatenate the columns of all rows. Returns rows and columns, (N,) each."""
    row_N = [row for row, columns_of_row in enumerate(columns) for _ in columns_of_row]
    column_N = [column for columns_of_row in columns for column in columns_of_row]
    return to_device(row_N, device, torch.long), to_device(column_N, device, torch.long)
