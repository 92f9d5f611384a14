"""Decodes a queue of rows: those of a batch in step, finished rows dropped, their places taken by rows that wait.

One row's way: `_admit` runs its prompt and adds it to the cache; `run` draws a token for every row of the batch; its
`turns` say whether the row goes on; `_renew` drops rows that are over and says which may join. A row has noise of its
own, so it draws the same tokens whenever it is admitted and whoever shares its batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from rlhf_lab.models.truncation import Truncation
from rlhf_lab.sampling.cache import StepCost
from rlhf_lab.sampling.drawing import draw
from rlhf_lab.sampling.turns import Turns

DROP_BELOW = 0.75
"""Rows are dropped, and others admitted, when the share of live rows is at most this (docs/design/003-speed.md)."""
OVERDUE = 1.25
"""Slots in use, in those of the longest reply, from which on rows that are over may no longer hold the oldest slots.

Each time they are let go the cache is copied, so it may not happen at every token.
"""


@dataclass(frozen=True)
class Room:
    """What may be decoded together.

    Attributes:
        rows: most rows.
        slots, width: tokens of the longest reply, and of the longest prompt.
        tokens: most tokens that prompts and replies may have in the cache.
    """

    rows: int
    slots: int
    width: int
    tokens: int

    @classmethod
    def of_groups(cls, rows: int, group: int, slots: int, width: int) -> Room:
        """Room for so many rows that share their prompts in groups: whole groups, if there is room for one."""
        groups = rows // group
        if groups:
            rows = groups * group
        return cls(rows, slots, width, rows * slots + max(1, groups) * width)

    def lines(self, size: int) -> int:
        """How many lines of so many rows there is room for, each with a copy of its prompt."""
        return min(self.rows // size, self.tokens // (size * self.slots + self.width))


class Decoding:
    """Decodes the rows of some prompts to their ends.

    Attributes:
        batch: the row of the queue in each place of the batch.
        asked: rows of the batch, with those that are being admitted.

    Args:
        decoder: `Decoder`, `ModelDecoder`, or that of a pack's family of models (`models.families`).
        prompts: as token ids, with `group` rows each: row i is one of prompt i // group.
        turns: what becomes of the tokens.
        slots: most tokens that a row adds to its prompt.
    """

    def __init__(
        self,
        decoder: Any,
        prompts: Sequence[list[int]],
        group: int,
        turns: Turns,
        *,
        temperature: float,
        truncation: Truncation,
        slots: int,
        device: torch.device,
    ):
        self.decoder, self.prompts, self.group, self.turns = decoder, prompts, group, turns
        self.temperature, self.truncation = temperature, truncation
        self.slots, self.width, self.device = slots, max(map(len, prompts)), device
        self.waiting = list(range(len(prompts) * group))
        self._clear()

    def _clear(self) -> None:
        self.batch: list[int] = []
        self.asked = 0
        self.line_size = 0  # rows that share a copy of their prompt
        self.look_below = math.inf  # live rows from which on it is tried again whether others may join
        self.cache: Any = None
        self.logits_RV = torch.empty(0)
        self.position_R = torch.empty(0)

    def run(self, most_rows: int) -> None:
        """Decode until no row is left, at most `most_rows` together."""
        room = Room.of_groups(most_rows, self.group, self.slots, self.width)
        steps = 0  # since the batch was empty
        while self.waiting or self.batch:
            if not self.batch:
                steps = 0
                # what a step costs is known once there is a cache: until then as few copies of prompts as possible
                self._admit(arrange([], self.waiting, self.group, room, StepCost(step=0, row=1, prompt=1))[1])
            token_R, logp_R = draw(self.logits_RV, self.turns.noise(), self.temperature, self.truncation)
            token_R, live_R = self.turns.take(token_R, logp_R)
            steps += 1
            newcomers: list[list[int]] = []
            if steps % self.turns.steps_per_check == 0 or steps == self.slots:
                token_R, newcomers = self._renew(token_R, live_R, room)
            if self.batch:
                self.logits_RV = self.decoder.logits(self.decoder.step(token_R, self.position_R, self.cache))
                # rows that are over go on until they are dropped, but not beyond the positions that the model has
                self.position_R = (self.position_R + 1).clamp_(max=self.width + self.slots - 1)
            if newcomers:
                self._admit(newcomers)

    def restart(self) -> None:
        """Give up the batch: its rows wait again, and will be decoded from their prompts."""
        self.waiting = sorted({*self.turns.give_up(), *self.waiting})
        self._clear()

    def _renew(self, token_R: Tensor, live_R: Tensor, room: Room) -> tuple[Tensor, list[list[int]]]:
        """Drop rows that are over. Returns the tokens of those that stay, and the lines that may join them."""
        live_count = int(live_R.sum())
        if live_count == 0:
            self.turns.keep(torch.empty(0, dtype=torch.long, device=self.device))
            self._clear()
            return token_R, []
        rows = len(self.batch)
        waiting = self.waiting if self.decoder.refills else []
        overdue = self.decoder.refills and self.cache.used >= OVERDUE * self.slots
        few_live = live_count <= DROP_BELOW * rows
        others_may_join = waiting and live_count <= min(self.look_below, DROP_BELOW * room.rows)
        if not few_live and not others_may_join and not overdue:
            return token_R, []
        cost = self.decoder.step_cost(self.cache)
        live_lines = self._live_lines(live_R)
        kept, newcomers = arrange(live_lines, waiting, self.group, room, cost)
        if newcomers and not self._joining_pays(kept, newcomers, room, cost):
            kept, newcomers = arrange(live_lines, [], self.group, room, cost)
        self.look_below = math.inf if newcomers else 0.9 * live_count
        # lines may carry repeated rows, so that arranging them anew need not make the batch smaller
        if newcomers or overdue or sum(map(len, kept)) <= DROP_BELOW * rows:
            token_R = token_R[self._keep(kept)]
        return token_R, newcomers

    def _joining_pays(self, kept: list[list[int]], newcomers: list[list[int]], room: Room, cost: StepCost) -> bool:
        """Whether rows that join now save more than they cost, in tokens whose keys and values are read.

        They save steps that a batch of their own would take. They cost two copies of the cache, each of which reads and
        writes it; and they read the slots before their first token, masked, until the rows that use them are over.
        """
        new_rows = sum(map(len, newcomers))
        steps = self.slots / 2  # how long replies will be nobody knows
        saved = cost.step * steps * new_rows / room.rows
        copied = 4 * sum(len(line) * self.cache.used + self.cache.width for line in kept)
        masked = new_rows * self.cache.used * steps / 4
        return saved > copied + masked

    def _live_lines(self, live_R: Tensor) -> list[list[int]]:
        """Places of the rows that go on, by line; of a row that is repeated the first one."""
        live = live_R.tolist()
        lines = []
        for begin in range(0, len(live), self.line_size):
            place_of_row: dict[int, int] = {}
            for place in range(begin, begin + self.line_size):
                if live[place]:
                    place_of_row.setdefault(self.batch[place], place)
            lines.append(list(place_of_row.values()))
        return lines

    def _keep(self, lines: list[list[int]]) -> Tensor:
        """Only the rows in these places go on. Returns the places as a tensor."""
        place_Bg = torch.tensor(lines, device=self.device)
        place_R = place_Bg.flatten()
        self.cache.keep(place_Bg)
        self.turns.keep(place_R)
        self.position_R = self.position_R[place_R]
        self.batch = [self.batch[place] for line in lines for place in line]
        self.line_size = len(lines[0])
        self.asked = len(self.batch)
        return place_R

    def _admit(self, lines: list[list[int]]) -> None:
        """Run the prompts of these rows of the queue, and add the rows to the batch."""
        size = len(lines[0])
        self.asked = len(self.batch) + len(lines) * size
        prompt_of_line = [line[0] // self.group for line in lines]
        numbers = list(dict.fromkeys(prompt_of_line))
        prompts = [self.prompts[number] for number in numbers]
        hidden_Bd, cache = self.decoder.start(prompts, size, self.device)
        logits_BV = self.decoder.logits(hidden_Bd)
        if len(numbers) < len(lines):  # lines that begin with the same prompt have a copy of it each
            copy_B = torch.tensor([numbers.index(number) for number in prompt_of_line], device=self.device)
            cache.keep(copy_B[:, None] * size + torch.arange(size, device=self.device))
            logits_BV = logits_BV[copy_B]
        logits_RV = logits_BV.repeat_interleave(size, dim=0)
        length_B = torch.tensor([len(self.prompts[number]) for number in prompt_of_line], device=self.device)
        position_R = length_B.repeat_interleave(size)
        if self.decoder.refills:
            cache.most_slots = math.ceil(OVERDUE * self.slots) + self.turns.steps_per_check
        if self.batch:
            self.cache.join(cache)
            self.logits_RV = torch.cat([self.logits_RV, logits_RV])
            self.position_R = torch.cat([self.position_R, position_R])
        else:
            self.cache, self.logits_RV, self.position_R = cache, logits_RV, position_R
        rows = [row for line in lines for row in line]
        self.turns.join(rows)
        self.batch += rows
        self.line_size = size
        admitted = set(rows)
        self.waiting = [row for row in self.waiting if row not in admitted]


def arrange(
    live_lines: list[list[int]], waiting: Sequence[int], group: int, room: Room, cost: StepCost
) -> tuple[list[list[int]], list[list[int]]]:
    """Lines of equally many rows, each with a copy of its prompt: (those of live rows, those of rows that join).

    Short lines drop every finished row and copy prompts more often. Of the sizes that are tried, the one is taken with
    which a step costs least per row that is alive. A line that is short of rows repeats one, which draws the same
    tokens twice.

    Args:
        live_lines: rows of the batch that go on, by the line that they are in.
        waiting: rows of the queue.
        group: rows of each prompt, see `Decoding`.
    """
    live_count = sum(map(len, live_lines))
    best: tuple[float, list[list[int]], list[list[int]]] | None = None
    # candidates: powers of two, and the group as it is
    for size in [size for size in range(1, group + 1) if size == group or size & (size - 1) == 0]:
        kept = _lines(live_lines, size)
        free = max(0, room.rows - len(kept) * size)
        by_prompt = [list(rows) for _, rows in groupby(waiting[:free], lambda row: row // group)]
        if len(kept) > room.lines(size):  # breaking up lines copies prompts
            continue
        newcomers = _lines(by_prompt, size)[: room.lines(size) - len(kept)]
        alive = live_count + len({row for line in newcomers for row in line})
        if alive:
            lines = len(kept) + len(newcomers)
            cost_per_row = (cost.step + lines * (size * cost.row + cost.prompt)) / alive
            if best is None or cost_per_row < best[0]:
                best = cost_per_row, kept, newcomers
    assert best is not None  # a row alone fits into any room, and the lines as they are have fitted
    return best[1], best[2]


def _lines(rows_by_prompt: Sequence[list[int]], size: int) -> list[list[int]]:
    """Lines of `size` rows of the same prompt, the last row of each prompt repeated as often as it takes."""
    lines = []
    for rows in rows_by_prompt:
        padded = rows + rows[-1:] * (-len(rows) % size)
        lines += [padded[begin : begin + size] for begin in range(0, len(padded), size)]
    return lines
