"""Packing of rows of different lengths into fewer, fuller rows for one forward pass.

The unit is a prompt followed by some of its responses. It forms a tree: each response sees its prompt and itself, and
its positions continue from the prompt's end. Units are placed next to each other in packed rows of one width, longest
unit first, each into the first row with enough space (first-fit decreasing). For prompts `p` and `q` with responses
`a b` and `c`:

    whole rows        packed rows
    p p p p a a a     p p p p a a b    ← one unit
    p p p p b · ·     q q c c · · ·
    q q c c c · ·

The last token of a response predicts nothing and is omitted. `·` is padding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from rlhf_lab.core.transfer import to_device
from rlhf_lab.models.encoding import TokenBatch

WIDTHS = (1.0, 1.5, 2.0, 3.0, 4.0, 8.0)
"""Widths of packed rows that are tried, as multiples of the longest row."""
ALIGNMENT = 8
"""Packed rows have a multiple of this width: fused attention on a GPU copies a mask with other widths."""
ATTENTION_COST = 1.5
"""Time per multiply-add in attention relative to linear layers, measured on one CPU thread (design note 037)."""


@dataclass(frozen=True)
class Lengths:
    """Lengths of the rows of a batch.

    Attributes:
        prompts: number of tokens of each row's prompt.
        slots: number of positions of each row that predict a token: prompt, and response without its last token.
        groups: rows with the same prompt, for each distinct prompt.
    """

    prompts: list[int]
    slots: list[int]
    groups: list[list[int]]

    @classmethod
    def of(cls, batch: TokenBatch) -> Lengths:
        """Return the lengths of a batch."""
        prompt_of = range(len(batch.lengths)) if batch.prompt_of is None else batch.prompt_of
        groups: dict[int, list[int]] = {}
        for row, prompt in enumerate(prompt_of):
            groups.setdefault(prompt, []).append(row)
        lengths = zip(batch.prompt_lengths, batch.lengths, strict=True)
        slots = [max(length - 1, prompt) for prompt, length in lengths]  # an empty response has no last token to omit
        return cls(list(batch.prompt_lengths), slots, list(groups.values()))

    @property
    def minimum(self) -> int:
        """Number of positions of the smallest possible packing: each prompt once and all responses, no padding."""
        prompts = [self.prompts[group[0]] for group in self.groups]
        return sum(self.slots) - sum(self.prompts) + sum(prompts)


@dataclass(frozen=True)
class PackingUnit:
    """A prompt and the rows whose responses follow it.

    Attributes:
        rows: rows of the batch, all with this prompt.
        slots: number of positions of the prompt and all the responses.
    """

    rows: tuple[int, ...]
    slots: int


@dataclass(frozen=True)
class Packing:
    """Assignment of units to packed rows.

    Attributes:
        rows: units of each packed row, in order.
        width: number of positions of a packed row.
    """

    rows: tuple[tuple[PackingUnit, ...], ...]
    width: int

    @property
    def slots(self) -> int:
        """Number of computed positions, including padding."""
        return len(self.rows) * self.width

    @property
    def pairs(self) -> int:
        """Number of computed query × key pairs, including masked ones."""
        return self.slots * self.width


def pack(lengths: Lengths, width: int) -> Packing:
    """Pack a batch into rows of `width` positions, or more if a single row needs more."""
    width = max(width, *lengths.slots)
    units = [unit for group in lengths.groups for unit in _split(lengths, group, width)]
    rows = _first_fit([unit.slots for unit in units], width)
    aligned_width = math.ceil(width / ALIGNMENT) * ALIGNMENT
    return Packing(tuple(tuple(units[index] for index in row) for row in rows), aligned_width)


def end_to_end(lengths: Lengths) -> Packing:
    """Concatenate full rows into one packed row without padding, for attention that needs no mask."""
    units = tuple(PackingUnit((row,), slots) for row, slots in enumerate(lengths.slots) if slots)
    return Packing((units,), sum(lengths.slots))  # an empty row predicts nothing


def packings(lengths: Lengths) -> Iterator[Packing]:
    """Yield packings of several widths.

    Wide ones keep the responses of a prompt together; narrow ones repeat prompts.
    """
    max_length = max(lengths.slots)
    all_rows = sum(lengths.slots)  # more width than all rows together gains nothing
    widths = {min(int(multiple * max_length), all_rows) for multiple in WIDTHS}
    for width in sorted(widths):
        yield pack(lengths, width)


def cost(slots: int, pairs: float, hidden: int) -> float:
    """Return the time of a pass, relative to the time of one slot in linear layers.

    A block of width h has about 12h² weights (arXiv:2001.08361, section 2.1), with one multiply-add per slot each. Each
    pair multiplies a query with a key, and a probability with a value: 2h multiply-adds.

    Args:
        slots: number of computed positions.
        pairs: number of computed query × key pairs, including masked ones.
        hidden: width h of the model.
    """
    return slots + ATTENTION_COST * pairs * 2 * hidden / (12 * hidden**2)


def _split(lengths: Lengths, group: Sequence[int], width: int) -> list[PackingUnit]:
    """Split the rows of one prompt into units that fit into `width`, as few as first-fit finds."""
    prompt = lengths.prompts[group[0]]
    # each unit has the prompt once, so only the responses are distributed over the rest of its width
    response_slots = [lengths.slots[row] - prompt for row in group]
    return [
        PackingUnit(tuple(group[i] for i in part), prompt + sum(response_slots[i] for i in part))
        for part in _first_fit(response_slots, width - prompt)
    ]


def _first_fit(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Distribute sizes over bins of `capacity`, first-fit decreasing (at most 11/9 of the optimum + 1 bins)."""
    remaining: list[int] = []
    bins: list[list[int]] = []
    largest_first = sorted(range(len(sizes)), key=lambda item: -sizes[item])
    for item in largest_first:
        position = next((index for index, left in enumerate(remaining) if sizes[item] <= left), len(bins))
        if position == len(bins):
            remaining.append(capacity)
            bins.append([])
        remaining[position] -= sizes[item]
        bins[position].append(item)
    return bins


@dataclass(frozen=True)
class Piece:
    """Consecutive slots of a packed row: a prompt, a response, or padding.

    Attributes:
        source: index of the first token in the flattened rows of the batch.
        position: position of the first token in its own row.
        start: column of the first slot in the packed row.
        prompt_start, prompt_end: columns of the prompt that these slots see in addition to themselves.
    """

    slots: int
    source: int
    position: int
    start: int
    prompt_start: int = 0
    prompt_end: int = 0


@dataclass(frozen=True)
class PackedRows:
    """Inputs of a forward pass over packed rows, and the locations of the batch's rows in them.

    Attributes:
        tokens_RW, position_RW: token ids, and their positions in their own rows.
        start_RW, prompt_start_RW, prompt_end_RW: columns that each slot sees, see `Piece`.
        prompt_slot_B, response_slot_B: first slot of each row's prompt and response in the flattened packed rows.
        prompt_len_B: number of slots of each row's prompt.
    """

    tokens_RW: torch.Tensor
    position_RW: torch.Tensor
    start_RW: torch.Tensor
    prompt_start_RW: torch.Tensor
    prompt_end_RW: torch.Tensor
    prompt_slot_B: torch.Tensor
    response_slot_B: torch.Tensor
    prompt_len_B: torch.Tensor

    @classmethod
    def of(cls, batch: TokenBatch, packing: Packing) -> PackedRows:
        """Arrange the tokens of a batch according to a packing."""
        lengths = Lengths.of(batch)
        device = batch.tokens_BT.device
        row_width = batch.tokens_BT.shape[1]
        prompt_slots = [0] * len(lengths.slots)
        response_slots = [0] * len(lengths.slots)
        pieces: list[Piece] = []
        for index, units in enumerate(packing.rows):
            column = 0
            for unit in units:
                first = unit.rows[0]
                prompt_start = column
                prompt_end = column + lengths.prompts[first]
                pieces.append(Piece(lengths.prompts[first], first * row_width, 0, column))
                column = prompt_end
                for row in unit.rows:
                    prompt = lengths.prompts[row]
                    response = lengths.slots[row] - prompt
                    prompt_slots[row] = index * packing.width + prompt_start
                    response_slots[row] = index * packing.width + column
                    pieces.append(Piece(response, row * row_width + prompt, prompt, column, prompt_start, prompt_end))
                    column += response
            # Padding sees itself: a query without any key would make the softmax 0/0.
            pieces.append(Piece(packing.width - column, 0, 0, column))
        columns = _expand(pieces, packing.width)
        # Padding may be longer than the longest row; its positions are clamped to those that the model has.
        position_RW = columns["position"].clamp(max=row_width - 1)
        source_RW = columns["source"].clamp(max=batch.tokens_BT.numel() - 1)
        return cls(
            tokens_RW=batch.tokens_BT.flatten()[to_device(source_RW, device)],
            position_RW=to_device(position_RW, device),
            start_RW=to_device(columns["start"], device),
            prompt_start_RW=to_device(columns["prompt_start"], device),
            prompt_end_RW=to_device(columns["prompt_end"], device),
            prompt_slot_B=to_device(prompt_slots, device),
            response_slot_B=to_device(response_slots, device),
            prompt_len_B=batch.prompt_len_B,
        )

    def mask(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the additive attention mask (R, 1, W, W): 0 for pairs that may attend, −∞ elsewhere.

        The mask is numeric instead of boolean. Eager and flex attention add it. Fused attention would convert booleans
        to numbers in every layer, and keep each copy for the backward pass.
        """
        column_W = torch.arange(self.tokens_RW.shape[1], device=self.tokens_RW.device)
        after_start_RWW = column_W >= self.prompt_start_RW[..., None]
        before_end_RWW = column_W < self.prompt_end_RW[..., None]
        in_prompt_RWW = after_start_RWW & before_end_RWW
        # a token sees its prompt, and the tokens of its own response up to itself
        sees_RWW = in_prompt_RWW.logical_or_(column_W >= self.start_RW[..., None])
        sees_RWW &= column_W <= column_W[:, None]
        mask_RWW = torch.zeros(sees_RWW.shape, dtype=dtype, device=column_W.device)
        return mask_RWW.masked_fill_(sees_RWW.logical_not_(), -math.inf)[:, None]

    def slots_before(self, row_N: torch.Tensor, column_N: torch.Tensor) -> torch.Tensor:
        """Return the slot of the token before each (row, column) of the batch, in the flattened packed rows, (N,)."""
        before_N = column_N - 1
        in_response_N = before_N - self.prompt_len_B[row_N]
        return torch.where(
            in_response_N < 0, self.prompt_slot_B[row_N] + before_N, self.response_slot_B[row_N] + in_response_N
        )


def _expand(pieces: Sequence[Piece], width: int) -> dict[str, torch.Tensor]:
    """Return each slot's token, position and visible columns, (R, W) each; the pieces fill packed rows in order."""
    slots_K = torch.tensor([piece.slots for piece in pieces])
    first_slot_K = slots_K.cumsum(0) - slots_K
    piece_S = torch.arange(len(pieces)).repeat_interleave(slots_K)
    offset_S = torch.arange(len(piece_S)) - first_slot_K[piece_S]
    columns = {}
    for name in ("source", "position", "start", "prompt_start", "prompt_end"):
        values_S = torch.tensor([getattr(piece, name) for piece in pieces])[piece_S]
        if name in ("source", "position"):  # these increase by one per slot within a piece
            values_S = values_S + offset_S
        columns[name] = values_S.view(-1, width)
    return columns
