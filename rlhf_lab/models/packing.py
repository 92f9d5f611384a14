"""Rows of different lengths laid into fewer, fuller ones for one forward pass.

The unit is a prompt followed by some of the replies to it, a tree: each reply sees its prompt and itself, and its
positions go on from the prompt's end. Units are laid side by side into packed rows of one width, longest first, each
into the first row that has room (first-fit decreasing). For prompts `p` and `q` with replies `a b` and `c`:

    whole rows        packed rows
    p p p p a a a     p p p p a a b    ← a group
    p p p p b · ·     q q c c · · ·
    q q c c c · ·

A reply's last token predicts nothing and is left out. `·` is padding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from rlhf_lab.core.transfer import to_device
from rlhf_lab.models.encoding import TokenBatch

WIDTHS = (1.0, 1.5, 2.0, 3.0, 4.0, 8.0)
"""Widths that are tried, as multiples of the longest row."""
ALIGNMENT = 8
"""Packed rows are a multiple of this wide: fused attention on a GPU copies a mask whose rows are not."""
ATTENTION_COST = 1.5
"""Time per multiply-add in attention over that in linear layers, measured on one CPU thread (design note 037)."""


@dataclass(frozen=True)
class Lengths:
    """Rows of a batch as the layout sees them.

    Attributes:
        prompts: tokens of each row's prompt.
        slots: positions of each row that predict a token: prompt and reply without its last token.
        groups: rows that share a prompt, for each distinct prompt.
    """

    prompts: list[int]
    slots: list[int]
    groups: list[list[int]]

    @classmethod
    def of(cls, batch: TokenBatch) -> Lengths:
        """Lengths of a batch."""
        prompt_of = range(len(batch.lengths)) if batch.prompt_of is None else batch.prompt_of
        groups: dict[int, list[int]] = {}
        for row, prompt in enumerate(prompt_of):
            groups.setdefault(prompt, []).append(row)
        slots = []
        for prompt, length in zip(batch.prompt_lengths, batch.lengths, strict=True):
            slots.append(max(length - 1, prompt))  # an empty reply has no last token to leave out
        return cls(list(batch.prompt_lengths), slots, list(groups.values()))

    @property
    def least(self) -> int:
        """Positions that any packing computes: each prompt once and all replies, without padding."""
        prompts = [self.prompts[group[0]] for group in self.groups]
        return sum(self.slots) - sum(self.prompts) + sum(prompts)


@dataclass(frozen=True)
class Unit:
    """A prompt and the rows whose replies follow it.

    Attributes:
        rows: of the batch; any of them has the prompt.
        slots: positions that the prompt and all the replies take.
    """

    rows: tuple[int, ...]
    slots: int


@dataclass(frozen=True)
class Packing:
    """Which units lie in which packed row.

    Attributes:
        rows: the units of each packed row, in order.
        width: positions of a packed row.
    """

    rows: tuple[tuple[Unit, ...], ...]
    width: int

    @property
    def slots(self) -> int:
        """Positions computed, padding included."""
        return len(self.rows) * self.width

    @property
    def pairs(self) -> int:
        """Query × key pairs computed, masked ones included."""
        return self.slots * self.width


def pack(lengths: Lengths, width: int) -> Packing:
    """Lay a batch into packed rows of at least `width` positions, wider only where one row needs it."""
    width = max(width, *lengths.slots)
    units = [unit for group in lengths.groups for unit in _split(lengths, group, width)]
    rows = _first_fit([unit.slots for unit in units], width)
    aligned_width = math.ceil(width / ALIGNMENT) * ALIGNMENT
    return Packing(tuple(tuple(units[i] for i in row) for row in rows), aligned_width)


def end_to_end(lengths: Lengths) -> Packing:
    """Whole rows behind each other in one packed row without padding, for attention that needs no mask."""
    units = tuple(Unit((row,), slots) for row, slots in enumerate(lengths.slots) if slots)
    return Packing((units,), sum(unit.slots for unit in units))


def packings(lengths: Lengths) -> Iterator[Packing]:
    """Packings of several widths: a wide one holds whole groups, a narrow one splits them and repeats their prompt."""
    longest = max(lengths.slots)
    all_rows = sum(lengths.slots)  # nothing is gained by more width than all rows together have
    widths = {min(int(multiple * longest), all_rows) for multiple in WIDTHS}
    for width in sorted(widths):
        yield pack(lengths, width)


def cost(slots: int, pairs: float, hidden: int) -> float:
    """Time of a pass in units of the time that one slot takes in linear layers.

    A block of width h has about 12h² weights (arXiv:2001.08361, section 2.1), one multiply-add per slot each. A query
    and a key are multiplied, and so are a probability and a value: 2h multiply-adds per pair.

    Args:
        slots: positions computed.
        pairs: query × key pairs computed, masked ones included.
        hidden: width h of the model.
    """
    return slots + ATTENTION_COST * pairs * 2 * hidden / (12 * hidden**2)


def _split(lengths: Lengths, group: Sequence[int], width: int) -> list[Unit]:
    """The rows of one prompt as units that fit into `width`, as few as first-fit finds."""
    prompt = lengths.prompts[group[0]]
    reply_slots = [lengths.slots[row] - prompt for row in group]
    parts = _first_fit(reply_slots, width - prompt)
    return [Unit(tuple(group[i] for i in part), prompt + sum(reply_slots[i] for i in part)) for part in parts]


def _first_fit(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Indices of sizes in bins of at most `capacity`, first-fit decreasing: at most 11/9 of the fewest bins + 1."""
    room: list[int] = []
    bins: list[list[int]] = []
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        place = next((number for number, left in enumerate(room) if sizes[i] <= left), None)
        if place is None:
            place = len(bins)
            room.append(capacity)
            bins.append([])
        room[place] -= sizes[i]
        bins[place].append(i)
    return bins


@dataclass(frozen=True)
class Piece:
    """Consecutive slots of a packed row: a prompt, a reply, or padding.

    Attributes:
        slots: how many.
        source: place of the first token in the flattened rows of the batch.
        position: of the first token in its own row.
        begin: the packed row's column of the first slot.
        prompt_begin, prompt_end: columns of the prompt that these slots see besides themselves.
    """

    slots: int
    source: int
    position: int
    begin: int
    prompt_begin: int = 0
    prompt_end: int = 0


@dataclass(frozen=True)
class PackedRows:
    """Inputs of a forward pass over packed rows, and where the rows of the batch lie in them.

    Attributes:
        tokens_RW, position_RW: token ids, and their positions in their own rows.
        begin_RW, prompt_begin_RW, prompt_end_RW: columns that each slot sees, see `Piece`.
        prompt_slot_B, reply_slot_B: the first slot of each row's prompt and reply in the flattened packed rows.
        prompt_len_B: slots of each row's prompt.
    """

    tokens_RW: torch.Tensor
    position_RW: torch.Tensor
    begin_RW: torch.Tensor
    prompt_begin_RW: torch.Tensor
    prompt_end_RW: torch.Tensor
    prompt_slot_B: torch.Tensor
    reply_slot_B: torch.Tensor
    prompt_len_B: torch.Tensor

    @classmethod
    def of(cls, batch: TokenBatch, packing: Packing) -> PackedRows:
        """Lay out the tokens of a batch."""
        lengths = Lengths.of(batch)
        device = batch.tokens_BT.device
        row_width = batch.tokens_BT.shape[1]
        prompt_slots = [0] * len(lengths.slots)
        reply_slots = [0] * len(lengths.slots)
        pieces: list[Piece] = []
        for number, units in enumerate(packing.rows):
            column = 0
            for unit in units:
                first = unit.rows[0]
                prompt_begin, prompt_end = column, column + lengths.prompts[first]
                pieces.append(Piece(lengths.prompts[first], first * row_width, 0, column))
                column = prompt_end
                for row in unit.rows:
                    prompt = lengths.prompts[row]
                    reply = lengths.slots[row] - prompt
                    prompt_slots[row] = number * packing.width + prompt_begin
                    reply_slots[row] = number * packing.width + column
                    pieces.append(Piece(reply, row * row_width + prompt, prompt, column, prompt_begin, prompt_end))
                    column += reply
            # Padding sees itself: a query without any key would make the softmax 0/0.
            pieces.append(Piece(packing.width - column, 0, 0, column))
        columns = _expand(pieces, packing.width)
        # Padding may be longer than the longest row; its positions stay within those that the model has.
        position_RW = columns["position"].clamp(max=row_width - 1)
        source_RW = columns["source"].clamp(max=batch.tokens_BT.numel() - 1)
        return cls(
            tokens_RW=batch.tokens_BT.flatten()[to_device(source_RW, device)],
            position_RW=to_device(position_RW, device),
            begin_RW=to_device(columns["begin"], device),
            prompt_begin_RW=to_device(columns["prompt_begin"], device),
            prompt_end_RW=to_device(columns["prompt_end"], device),
            prompt_slot_B=to_device(prompt_slots, device),
            reply_slot_B=to_device(reply_slots, device),
            prompt_len_B=batch.prompt_len_B,
        )

    def mask(self, dtype: torch.dtype) -> torch.Tensor:
        """What each slot may see, (R, 1, W, W): 0 where it may, −∞ elsewhere, to be added to attention scores.

        Numbers and not booleans: eager and flex attention add the mask, and fused attention would make numbers of
        booleans again in every layer, and keep them for the backward pass.
        """
        column_W = torch.arange(self.tokens_RW.shape[1], device=self.tokens_RW.device)
        in_prompt_RWW = (column_W >= self.prompt_begin_RW[..., None]) & (column_W < self.prompt_end_RW[..., None])
        sees_RWW = in_prompt_RWW.logical_or_(column_W >= self.begin_RW[..., None])
        sees_RWW &= column_W <= column_W[:, None]
        mask_RWW = torch.zeros(sees_RWW.shape, dtype=dtype, device=column_W.device)
        return mask_RWW.masked_fill_(sees_RWW.logical_not_(), -math.inf)[:, None]

    def slots_before(self, row_N: torch.Tensor, column_N: torch.Tensor) -> torch.Tensor:
        """Slot of the token before each (row, column) of the batch, in the flattened packed rows, (N,)."""
        before_N = column_N - 1
        in_reply_N = before_N - self.prompt_len_B[row_N]
        return torch.where(in_reply_N < 0, self.prompt_slot_B[row_N] + before_N, self.reply_slot_B[row_N] + in_reply_N)


def _expand(pieces: Sequence[Piece], width: int) -> dict[str, torch.Tensor]:
    """Each slot's token, position and the columns it sees, (R, W) each; the pieces fill packed rows one by one."""
    slots_K = torch.tensor([piece.slots for piece in pieces])
    first_slot_K = slots_K.cumsum(0) - slots_K
    piece_S = torch.arange(len(pieces)).repeat_interleave(slots_K)
    offset_S = torch.arange(len(piece_S)) - first_slot_K[piece_S]
    columns = {}
    for name in ("source", "position", "begin", "prompt_begin", "prompt_end"):
        values_S = torch.tensor([getattr(piece, name) for piece in pieces])[piece_S]
        if name in ("source", "position"):  # these count on within a piece
            values_S = values_S + offset_S
        columns[name] = values_S.view(-1, width)
    return columns
