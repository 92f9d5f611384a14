"""The tokens at which the steps of a reply end, and the scores that a head gives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.transfer import to_device
from rlhf_lab.models.divided import within
from rlhf_lab.models.encoding import Encoder, Row, TokenBatch
from rlhf_lab.models.weights import scalar_head


@dataclass(frozen=True, slots=True)
class StepRow:
    """A prompt, a reply, and the tokens at which the reply's steps end.

    Attributes:
        row: prompt and reply as token ids.
        ends: place among the reply's tokens of each step's last character; steps that were cut off have none.
    """

    row: Row
    ends: tuple[int, ...]

    @property
    def columns(self) -> list[int]:
        """The steps' places in the whole row."""
        return [len(self.row[0]) + end for end in self.ends]

    @property
    def last(self) -> int:
        """Place of the last token in the whole row."""
        return len(self.row[0]) + len(self.row[1]) - 1


def step_row(encoder: Encoder, prompt: str, reply: str, lines: Sequence[tuple[int, int]], max_length: int) -> StepRow:
    """A row as every other stage sees it, with the token at which each of its lines ends.

    Args:
        lines: (begin, end) of the steps in the reply, not overlapping, in order.
    """
    row = encoder.row(prompt, reply, max_length)
    ends = end_tokens(encoder, reply, [end for _, end in lines])
    _, reply_ids = row
    ends_not_cut_off = tuple(end for end in ends if end < len(reply_ids))
    return StepRow(row, ends_not_cut_off)


def end_tokens(encoder: Encoder, reply: str, ends: Sequence[int]) -> list[int]:
    """Place among the reply's tokens of the token that holds the character before each of `ends`.

    A fast tokenizer says which characters each of its tokens covers. From another one, the tokens of the text up to
    there are counted, and have to be those that the whole reply begins with. Raises DataError where they are not.
    """
    leading_space = "" if encoder.chat else " "  # as in Encoder.response
    text = leading_space + reply
    tokenizer = encoder.tokenizer
    options = {"add_special_tokens": False, "split_special_tokens": True}
    end_places: list[int] = []
    if tokenizer.is_fast:
        spans = tokenizer(text, return_offsets_mapping=True, **options)["offset_mapping"]
        place = 0  # goes on from one step to the next, as they are in order
        for end in ends:
            last_character = len(leading_space) + end - 1
            while place + 1 < len(spans) and spans[place + 1][0] <= last_character:
                place += 1
            end_places.append(place)
        return end_places
    all_ids = tokenizer(text, **options)["input_ids"]
    for end in ends:
        ids_so_far = tokenizer(text[: len(leading_space) + end], **options)["input_ids"]
        if ids_so_far != all_ids[: len(ids_so_far)]:
            raise DataError(
                f"the tokenizer merges the end of the step {reply[:end].splitlines()[-1]!r} with what follows and does "
                "not say where its tokens begin; use a fast tokenizer (tokenizer.json)"
            )
        end_places.append(len(ids_so_far) - 1)
    return end_places


def step_logits(model: nn.Module, batch: TokenBatch) -> Tensor:
    """Output of a scalar head at each token, (B, T), float32, differentiable. It has seen nothing after the token."""
    return within(model, _step_logits, model, batch)


def _step_logits(model: nn.Module, batch: TokenBatch) -> Tensor:
    hidden_BTd = model.base_model(input_ids=batch.tokens_BT, use_cache=False).last_hidden_state  # type: ignore[operator]
    return scalar_head(model, hidden_BTd)[..., 0]


def places(columns: Sequence[Sequence[int]], device: str) -> tuple[Tensor, Tensor]:
    """Columns of each row, laid end to end: rows and columns, each (N,)."""
    row_N = [row for row, columns_of_row in enumerate(columns) for _ in columns_of_row]
    column_N = [column for columns_of_row in columns for column in columns_of_row]
    return to_device(row_N, device, torch.long), to_device(column_N, device, torch.long)
