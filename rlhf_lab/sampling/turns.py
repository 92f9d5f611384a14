"""Bookkeeping of sampled tokens: which rows continue, with which token, and what each row has generated.

`OneTurn` stays on the device: a row ends with a stop token or after `slots` tokens. `SeveralTurns` inspects every token
on the host. After a turn an environment's tokens may follow. The row reads them one per step while other rows sample,
so nothing is encoded twice. A turn may also end with a stop text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

STEPS_PER_CHECK = 8
"""Tokens between two checks for finished rows on a GPU. Each check makes the host wait for the device."""

NextTurn = Callable[[int, list[int]], Sequence[int]]
"""Function (row, tokens of its turn) → tokens that follow before its next turn; empty if the row has finished."""


@dataclass
class RowTokens:
    """Tokens that one row has added to its prompt.

    Attributes:
        token_ids: tokens in order, including those that an environment inserted between two turns.
        sampled: True for each token that the policy sampled.
        logps: log-probabilities of the tokens that the policy sampled, nats.
        finished: False if the last turn was truncated.
    """

    token_ids: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    finished: bool = False


def end_turn(
    row: RowTokens, number: int, spoken: list[int], *, finished: bool, next_turn: NextTurn, max_tokens_left: int
) -> Sequence[int]:
    """End a turn of a row. Returns the tokens that the row reads before its next turn; empty if it has finished.

    Args:
        spoken: tokens of the turn, which are already part of the row.
        finished: False if the turn was truncated.
    """
    row.finished = finished
    follows = next_turn(number, spoken)  # also after a truncated turn: the environment judges it as it is
    fits = len(row.token_ids) + len(follows) < max_tokens_left
    return follows if finished and fits else ()


def new_token_limit(max_tokens_left: int, opened: int) -> int:
    """Return the maximum number of tokens that a row adds to its prompt; at least 1.

    Args:
        max_tokens_left: maximum number of tokens of a row after its prompt, including its opening.
        opened: number of tokens of the opening, which the prompt ends with.
    """
    return max(1, max_tokens_left - opened)


class OneTurn:
    """Collector for rows that are a single response each. Rows have indices 0, 1, 2, … in the queue.

    Args:
        numbers: key of each row in the result.
        noise_RT: uniform number for each row and position of its response.
        limits: maximum number of tokens of each row.

    Attributes:
        steps_per_check: number of tokens between two checks for finished rows.
    """

    def __init__(
        self,
        numbers: Sequence[int],
        noise_RT: Tensor,
        stop_ids: Sequence[int],
        device: torch.device,
        limits: Sequence[int],
    ):
        rows, self.slots = noise_RT.shape
        self.limits = limits
        self.limit_N = torch.tensor(limits, device=device)  # of each row of the queue
        self.steps_per_check = 1 if device.type == "cpu" else STEPS_PER_CHECK
        self.numbers = numbers
        self.noise_TR = noise_RT.T.to(device)
        self.stop_ids = frozenset(stop_ids)
        self.stop_S = torch.tensor(stop_ids, device=device)
        # One more position than a response has: finished rows write to it until they are dropped.
        self.tokens_TR = torch.full((self.slots + 1, rows), stop_ids[0], device=device)
        self.logps_TR = torch.zeros(self.slots + 1, rows, device=device)
        self.row_R = torch.empty(0, dtype=torch.long, device=device)  # row of the queue at each position of the batch
        self.position_R = torch.empty(0, dtype=torch.long, device=device)  # position of each row's next token
        self.live_R = torch.empty(0, dtype=torch.bool, device=device)

    def join(self, rows: Sequence[int]) -> None:
        """Append rows to the batch; a row that appears twice samples the same tokens twice."""
        row_R = torch.tensor(rows, device=self.row_R.device)
        self.row_R = torch.cat([self.row_R, row_R])
        self.position_R = torch.cat([self.position_R, torch.zeros_like(row_R)])
        self.live_R = torch.cat([self.live_R, torch.ones_like(row_R, dtype=torch.bool)])

    def noise(self) -> Tensor:
        """Return a number in [0, 1) for each row of the batch, (R,), from which its token is sampled."""
        return self.noise_TR[self.position_R.clamp(max=self.slots - 1), self.row_R]

    def take(self, token_R: Tensor, logp_R: Tensor) -> tuple[Tensor, Tensor]:
        """Record sampled tokens. Returns (token that each row reads next, True if the row continues), (R,) each."""
        self.tokens_TR[self.position_R, self.row_R] = token_R
        self.logps_TR[self.position_R, self.row_R] = logp_R
        self.position_R = (self.position_R + 1).clamp_(max=self.slots)  # finished rows write into one spare slot
        not_stopped_R = (token_R[:, None] != self.stop_S).all(1)
        self.live_R = self.live_R & not_stopped_R & (self.position_R < self.limit_N[self.row_R])
        return token_R, self.live_R

    def keep(self, index_R: Tensor) -> None:
        """Keep only the rows at these batch positions; a row that appears twice samples the same tokens twice."""
        self.row_R = self.row_R[index_R]
        self.position_R = self.position_R[index_R]
        self.live_R = self.live_R[index_R]

    def give_up(self) -> list[int]:
        """Empty the batch. Returns its unfinished rows, which will join again and be sampled from the start."""
        live = self.row_R[self.live_R].tolist()
        self.keep(self.row_R.new_empty(0))
        return live

    def rows(self) -> dict[int, RowTokens]:
        """Return the tokens of each row when all have finished. The keys are the rows' `numbers`."""
        result = {}
        responses = self.tokens_TR[: self.slots].T.tolist()
        logps = self.logps_TR[: self.slots].T.tolist()
        for number, tokens, token_logps, limit in zip(self.numbers, responses, logps, self.limits, strict=True):
            # values after the token that ends a row are meaningless
            ends = (position for position, token in enumerate(tokens[:limit]) if token in self.stop_ids)
            length = next(ends, limit - 1) + 1
            finished = tokens[length - 1] in self.stop_ids
            sampled = [True] * length
            result[number] = RowTokens(tokens[:length], sampled, token_logps[:length], finished)
        return result


class SeveralTurns:
    """`OneTurn` for rows that may have several turns, and for turns that may end with a stop text.

    A turn is truncated, and its row ends, if it reaches `slots` tokens or uses up the row's `max_tokens_left`. A row
    also ends if the environment's tokens after a turn leave no space for another one.

    Args:
        numbers: index of each row for `noise` and `next_turn`.
        noise: turn → uniform numbers (all rows, slots). They depend on row and turn only, so the length of other
            rows' turns changes nothing.
        ends_text: returns True if the tokens of a turn end with a stop text.
        max_tokens_left: maximum number of tokens that a row adds to its prompt, including the environment's.
        opened: for each row, the tokens of its first turn that are part of its prompt.
    """

    steps_per_check = 1  # every token is inspected on the host anyway

    def __init__(
        self,
        numbers: Sequence[int],
        noise: Callable[[int], NDArray[np.float32]],
        stop_ids: Sequence[int],
        device: torch.device,
        *,
        next_turn: NextTurn,
        ends_text: Callable[[list[int]], bool],
        slots: int,
        max_tokens_left: int,
        opened: Sequence[int],
    ):
        self.noise_of_turn = noise
        self.stop_ids = frozenset(stop_ids)
        self.device = device
        self.next_turn = next_turn
        self.ends_text = ends_text
        self.slots = slots
        self.max_tokens_left = max_tokens_left
        self.numbers = list(numbers)
        self.opened = dict(zip(numbers, opened, strict=True))
        self.batch: list[int] = []  # index of the row at each position of the batch
        self.finished: dict[int, RowTokens] = {}
        self.turn: dict[int, int] = {}
        self.spoken: dict[int, list[int]] = {}  # tokens of the row's current turn
        self.forced: dict[int, deque[int]] = {}  # environment tokens that the row has still to read
        self.live: set[int] = set()

    def join(self, rows: Sequence[int]) -> None:
        for row in rows:
            number = self.numbers[row]
            self.batch.append(number)
            self.finished[number] = RowTokens()
            self.turn[number] = 0
            self.spoken[number] = []
            self.forced[number] = deque()
            self.live.add(number)

    def noise(self) -> Tensor:
        values = [0.0] * len(self.batch)
        for position, row in enumerate(self.batch):
            if row in self.live and not self.forced[row]:  # forced tokens of the environment are not sampled
                noise_of_rows = self.noise_of_turn(self.turn[row])
                values[position] = float(noise_of_rows[row, len(self.spoken[row])])
        return torch.tensor(values, device=self.device)

    def take(self, token_R: Tensor, logp_R: Tensor) -> tuple[Tensor, Tensor]:
        pairs = zip(token_R.tolist(), logp_R.tolist(), strict=True)
        selected = dict(zip(self.batch, pairs, strict=True))
        taken: dict[int, int] = {}
        for row, (token, logp) in selected.items():  # the dict handles a repeated row once
            if row not in self.live:
                taken[row] = token
            elif self.forced[row]:
                taken[row] = self.forced[row].popleft()
                self._append(row, taken[row], sampled=False)
            else:
                taken[row] = token
                self._append(row, token, sampled=True)
                self.finished[row].logps.append(logp)
                self.spoken[row].append(token)
                self._end_turn_if_over(row, token)
        tokens = torch.tensor([taken[row] for row in self.batch], device=self.device)
        live = torch.tensor([row in self.live for row in self.batch], device=self.device)
        return tokens, live

    def _append(self, row: int, token: int, *, sampled: bool) -> None:
        self.finished[row].token_ids.append(token)
        self.finished[row].sampled.append(sampled)

    def _end_turn_if_over(self, row: int, token: int) -> None:
        spoken = self.spoken[row]
        opened = self.opened[row]
        max_tokens_left = self.max_tokens_left - opened
        slots = self.slots - (0 if self.turn[row] else opened)
        finished = token in self.stop_ids or self.ends_text(spoken)
        if not finished and len(spoken) < slots and len(self.finished[row].token_ids) < max_tokens_left:
            return
        follows = end_turn(
            self.finished[row],
            row,
            spoken,
            finished=finished,
            next_turn=self.next_turn,
            max_tokens_left=max_tokens_left,
        )
        if not follows:
            self.live.discard(row)
            return
        self.forced[row].extend(follows)
        self.spoken[row] = []
        self.turn[row] += 1

    def keep(self, index_R: Tensor) -> None:
        self.batch = [self.batch[position] for position in index_R.tolist()]

    def give_up(self) -> list[int]:
        live = [row for row, number in enumerate(self.numbers) if number in self.live]
        self.batch = []
        self.live.clear()
        return live

    def rows(self) -> dict[int, RowTokens]:
        return self.finished
