"""Continuous batching: decode a queue of rows, drop finished rows and refill their slots from the queue.

The life of a row: `_admit` runs its prompt and adds it to the cache; `run` samples a token for every row of the batch;
`turns` decides whether the row continues; `_renew` drops finished rows and selects the waiting rows that may join. Each
row has its own noise, so it samples the same tokens whenever it is admitted and whichever rows share its batch.

A row group is a set of rows that share one copy of their prompt's KV cache. All row groups of a batch have the same
size, because the cache is one tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from rlhf_lab.core.progress import progress
from rlhf_lab.models.truncation import Truncation
from rlhf_lab.sampling.cache import StepCost
from rlhf_lab.sampling.drawing import draw
from rlhf_lab.sampling.turns import OneTurn, SeveralTurns

DROP_BELOW = 0.75
"""Replace finished rows once at most this fraction of rows is unfinished (see docs/design/003-speed.md)."""
OVERDUE = 1.25
"""Compact the cache once it is this many times longer than the longest response, even if few rows have finished.

Compaction copies the cache, so it must not run at every token.
"""


@dataclass(frozen=True)
class BatchCapacity:
    """Limits of one batch.

    Attributes:
        slots: maximum number of response tokens of a row.
        width: tokens of the longest prompt.
        tokens: maximum number of prompt and response tokens in the cache, over all rows.
    """

    rows: int
    slots: int
    width: int
    tokens: int

    @classmethod
    def of_groups(cls, rows: int, group: int, slots: int, width: int) -> BatchCapacity:
        """Return the capacity for at most `rows` rows: complete groups that share a prompt, or a part of one group."""
        groups = rows // group
        if groups:
            rows = groups * group
        tokens = rows * slots + max(1, groups) * width
        return cls(rows, slots, width, tokens)

    def row_groups(self, size: int) -> int:
        """Return the maximum number of row groups of `size` rows, each with one copy of its prompt."""
        tokens_of_group = size * self.slots + self.width
        return min(self.rows // size, self.tokens // tokens_of_group)


@dataclass(eq=False)
class Decoding:
    """Decodes responses to a list of prompts until every row has finished.

    Attributes:
        decoder: `Decoder`, `ModelDecoder`, or the decoder of a pack's model family (`models.families`).
        prompts: token ids of each prompt, which has `group` rows: row i belongs to prompt i // group.
        slots: maximum number of tokens that a row adds to its prompt.
        positions: maximum number of tokens of a row with its prompt.
        batch: index in the queue of the row at each position of the batch.
        live: number of unfinished rows of the batch when this was last checked.
        asked: number of rows of the batch, including those that are being admitted.
    """

    decoder: Any
    prompts: Sequence[list[int]]
    group: int
    turns: OneTurn | SeveralTurns
    _: KW_ONLY
    temperature: float
    truncation: Truncation
    slots: int
    positions: int
    device: torch.device

    def __post_init__(self) -> None:
        self.width = max(map(len, self.prompts))
        self.waiting = list(range(len(self.prompts) * self.group))
        self._clear()

    def _clear(self) -> None:
        self.batch: list[int] = []
        self.live = 0
        self.asked = 0
        self.group_size = 0  # rows that share one copy of their prompt
        # Number of live rows below which admission is tried again. It falls after each attempt that did not pay, so
        # that `arrange` does not run at every check.
        self.retry_below = math.inf
        self.cache: Any = None
        self.logits_RV = torch.empty(0)
        self.position_R = torch.empty(0)

    def run(self, max_rows: int) -> None:
        """Decode until all rows have finished, with at most `max_rows` rows in a batch."""
        capacity = BatchCapacity.of_groups(max_rows, self.group, self.slots, self.width)
        steps = 0  # since the batch was empty
        rows = len(self.prompts) * self.group
        with progress("sampling", rows, rows - len(self.waiting)) as ticker:
            while self.waiting or self.batch:
                if not self.batch:
                    steps = 0
                    # The true step cost is only known once a cache exists; this one minimises copies of prompts.
                    unknown_cost = StepCost(step=0, row=1, prompt=1)
                    _, first_row_groups = arrange([], self.waiting, self.group, capacity, unknown_cost)
                    self._admit(first_row_groups)
                token_R, logp_R = draw(self.logits_RV, self.turns.noise(), self.temperature, self.truncation)
                token_R, live_R = self.turns.take(token_R, logp_R)
                steps += 1
                joined_rows: list[list[int]] = []
                if steps % self.turns.steps_per_check == 0 or steps == self.slots:
                    token_R, joined_rows = self._renew(token_R, live_R, capacity)
                    finished = rows - len(self.waiting) - self.live
                    ticker.advance(max(0, finished - ticker.done))
                if self.batch:
                    self.logits_RV = self.decoder.logits(self.decoder.step(token_R, self.position_R, self.cache))
                    # Finished rows are decoded until they are dropped, so their position is clamped to the model's
                    # range. The last token of a row is sampled, but never read.
                    self.position_R = (self.position_R + 1).clamp_(max=self.positions - 2)
                if joined_rows:
                    self._admit(joined_rows)

    def restart(self) -> None:
        """Put all unfinished rows of the batch back into the queue; they are decoded again from their prompts."""
        self.waiting = sorted({*self.turns.give_up(), *self.waiting})
        self._clear()

    def _renew(self, token_R: Tensor, live_R: Tensor, capacity: BatchCapacity) -> tuple[Tensor, list[list[int]]]:
        """Drop finished rows if it pays. Return the tokens of the remaining rows and the row groups that may join."""
        live_count = self.live = int(live_R.sum())
        if live_count == 0:
            self.turns.keep(torch.empty(0, dtype=torch.long, device=self.device))
            self._clear()
            return token_R, []
        rows = len(self.batch)
        waiting = self.waiting if self.decoder.refills else []
        is_stale = self.decoder.refills and self.cache.used >= OVERDUE * self.slots
        many_finished = live_count <= DROP_BELOW * rows
        max_live = min(self.retry_below, DROP_BELOW * capacity.rows)
        may_admit = bool(waiting) and live_count <= max_live
        if not many_finished and not may_admit and not is_stale:
            return token_R, []
        cost = self.decoder.step_cost(self.cache)
        live_row_groups = self._live_row_groups(live_R)
        kept, joined_rows = arrange(live_row_groups, waiting, self.group, capacity, cost)
        if joined_rows and not self._joining_pays(kept, joined_rows, capacity, cost):
            kept, joined_rows = arrange(live_row_groups, [], self.group, capacity, cost)
        self.retry_below = math.inf if joined_rows else 0.9 * live_count
        # Row groups are padded with repeated rows, so rearranging them does not always make the batch smaller.
        if joined_rows or is_stale or sum(map(len, kept)) <= DROP_BELOW * rows:
            token_R = token_R[self._keep(kept)]
        return token_R, joined_rows

    def _joining_pays(
        self, kept: list[list[int]], joined_rows: list[list[int]], capacity: BatchCapacity, cost: StepCost
    ) -> bool:
        """Return True if admitting rows now saves more than it costs, in tokens of KV cache that are read.

        Saved: the decoding steps that a later batch would need for these rows. Cost: the cache is copied twice, and
        each copy reads and writes it (factor 4). In addition the new rows read the masked slots before their first
        token until the older rows have finished.
        """
        new_rows = sum(map(len, joined_rows))
        steps = self.slots / 2  # response lengths are not known in advance: assume half the limit
        saved = cost.step * steps * new_rows / capacity.rows
        cached_tokens = [len(row_group) * self.cache.used + self.cache.width for row_group in kept]
        copied = 4 * sum(cached_tokens)
        masked = new_rows * self.cache.used * steps / 4
        return saved > copied + masked

    def _live_row_groups(self, live_R: Tensor) -> list[list[int]]:
        """Return the batch positions of the live rows of each row group; a repeated row counts once."""
        live = live_R.tolist()
        row_groups = []
        for start in range(0, len(live), self.group_size):
            position_of_row: dict[int, int] = {}  # a group is filled by repeating its last row
            for position in range(start, start + self.group_size):
                if live[position]:
                    position_of_row.setdefault(self.batch[position], position)
            row_groups.append(list(position_of_row.values()))
        return row_groups

    def _keep(self, row_groups: list[list[int]]) -> Tensor:
        """Drop all rows except those at these batch positions. Return the positions as a tensor (R,)."""
        position_Bg = torch.tensor(row_groups, device=self.device)
        position_R = position_Bg.flatten()
        self.cache.keep(position_Bg)
        self.turns.keep(position_R)
        self.position_R = self.position_R[position_R]
        self.batch = [self.batch[position] for row_group in row_groups for position in row_group]
        self.group_size = len(row_groups[0])
        self.asked = len(self.batch)
        return position_R

    def _admit(self, row_groups: list[list[int]]) -> None:
        """Run the prompts of these rows of the queue, and add the rows to the batch."""
        size = len(row_groups[0])
        self.asked = len(self.batch) + len(row_groups) * size
        prompt_of_row_group = [row_group[0] // self.group for row_group in row_groups]
        prompt_indices = list(dict.fromkeys(prompt_of_row_group))
        prompts = [self.prompts[index] for index in prompt_indices]
        hidden_Bd, cache = self.decoder.start(prompts, size, self.device)
        logits_BV = self.decoder.logits(hidden_Bd)
        if len(prompt_indices) < len(row_groups):
            # Each distinct prompt is run once; every row group of that prompt then gets its own copy of the KV cache.
            source_of_row_group = [prompt_indices.index(index) for index in prompt_of_row_group]
            copy_B = torch.tensor(source_of_row_group, device=self.device)
            row_of_group = torch.arange(size, device=self.device)
            cache.keep(copy_B[:, None] * size + row_of_group)
            logits_BV = logits_BV[copy_B]
        logits_RV = logits_BV.repeat_interleave(size, dim=0)
        prompt_lengths = [len(self.prompts[index]) for index in prompt_of_row_group]
        length_B = torch.tensor(prompt_lengths, device=self.device)
        position_R = length_B.repeat_interleave(size)
        if self.decoder.refills:
            # the cache is compacted before it needs more slots than this, so it need not grow further
            cache.max_slots = math.ceil(OVERDUE * self.slots) + self.turns.steps_per_check
        if self.batch:
            self.cache.join(cache)
            self.logits_RV = torch.cat([self.logits_RV, logits_RV])
            self.position_R = torch.cat([self.position_R, position_R])
        else:
            self.cache = cache
            self.logits_RV = logits_RV
            self.position_R = position_R
        rows = [row for row_group in row_groups for row in row_group]
        self.turns.join(rows)
        self.batch += rows
        self.group_size = size
        admitted = set(rows)
        self.waiting = [row for row in self.waiting if row not in admitted]


def arrange(
    live_row_groups: list[list[int]], waiting: Sequence[int], group: int, capacity: BatchCapacity, cost: StepCost
) -> tuple[list[list[int]], list[list[int]]]:
    """Return row groups of equal size: (groups of live rows, groups of rows that join).

    Small groups drop every finished row but copy prompts more often. Several sizes are tried, and the one with the
    lowest step cost per live row is returned. A group with too few rows repeats its last row, which then samples the
    same tokens twice.

    Args:
        live_row_groups: live rows of the batch, by their current row group.
        waiting: rows of the queue that may join.
        group: rows of each prompt, see `Decoding`.
    """
    live_count = sum(map(len, live_row_groups))
    best: tuple[float, list[list[int]], list[list[int]]] | None = None
    # candidates: powers of two below the group's size, and the full group
    sizes = [size for size in range(1, group) if size & (size - 1) == 0]
    sizes.append(group)
    for size in sizes:
        kept = _row_groups(live_row_groups, size)
        free = max(0, capacity.rows - len(kept) * size)
        # rows of one prompt are consecutive in the queue
        groups = groupby(waiting[:free], lambda row: row // group)
        by_prompt = [list(rows) for _, rows in groups]
        max_row_groups = capacity.row_groups(size)
        if len(kept) > max_row_groups:  # smaller groups need more copies of prompts than fit
            continue
        joined_rows = _row_groups(by_prompt, size)[: max_row_groups - len(kept)]
        distinct_joined = {row for row_group in joined_rows for row in row_group}
        alive = live_count + len(distinct_joined)
        if alive:
            row_groups = len(kept) + len(joined_rows)
            step_cost = cost.step + row_groups * (size * cost.row + cost.prompt)
            cost_per_row = step_cost / alive
            if best is None or cost_per_row < best[0]:
                best = cost_per_row, kept, joined_rows
    assert best is not None, "size 1 fits any capacity, and the current size has fitted before"
    return best[1], best[2]


def _row_groups(rows_by_prompt: Sequence[list[int]], size: int) -> list[list[int]]:
    """Split the rows of each prompt into groups of `size`; the last row of a prompt is repeated to fill its group."""
    row_groups = []
    for rows in rows_by_prompt:
        missing = -len(rows) % size
        padded = rows + rows[-1:] * missing
        row_groups += [padded[start : start + size] for start in range(0, len(padded), size)]
    return row_groups
