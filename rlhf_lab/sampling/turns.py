"""What becomes of the tokens that are drawn: which rows go on, with which token, and what a row has said.

`OneTurn` stays on the device: a row ends with a stop token or after `slots` tokens. `SeveralTurns` looks at every token
on the host: behind a turn an environment's tokens may follow, which the rows read one per step while others sample, so
nothing is encoded twice; and a turn may end with a piece of text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

STEPS_PER_CHECK = 8
"""Tokens between two looks at which rows are over, on a GPU: each makes the host wait for the device."""

NextTurn = Callable[[int, list[int]], Sequence[int]]
"""(row, tokens of its turn) → the tokens that follow before its next turn; none where the row is over."""


@dataclass
class RowTokens:
    """What one row has added to its prompt.

    Attributes:
        token_ids: in order, with those that an environment put between two turns.
        sampled: which of them the policy chose.
        logps: of the tokens that the policy chose, nats.
        ended: False where the last turn was cut.
    """

    token_ids: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    ended: bool = False


def end_turn(
    row: RowTokens, number: int, spoken: list[int], *, ended: bool, next_turn: NextTurn, most_tokens: int
) -> Sequence[int]:
    """End a turn of a row. Returns the tokens that are read before the next one; none where the row is over.

    Args:
        spoken: the tokens of the turn, which the row has already.
        ended: False where it was cut.
        most_tokens: that the row may add to its prompt.
    """
    row.ended = ended
    follows = next_turn(number, spoken)  # also behind a turn that was cut: the environment judges it as it is
    fits = len(row.token_ids) + len(follows) < most_tokens
    return follows if ended and fits else ()


class Turns(Protocol):
    """The rows that are sampled, from the first token to the last. Rows are numbered 0, 1, 2, … in the queue.

    Attributes:
        steps_per_check: tokens after which it is worth looking which rows are over.
    """

    steps_per_check: int

    def join(self, rows: Sequence[int]) -> None:
        """Add rows to the batch, behind those that are in it; one that is repeated draws the same tokens twice."""
        ...

    def noise(self) -> Tensor:
        """A number in [0, 1) for each row now in the batch, (R,), from which its token is drawn."""
        ...

    def take(self, token_R: Tensor, logp_R: Tensor) -> tuple[Tensor, Tensor]:
        """Drawn tokens with their log-probabilities → (what each row reads next, whether it goes on), (R,) each."""
        ...

    def keep(self, index_R: Tensor) -> None:
        """Only these rows of the batch go on; one that is repeated draws the same tokens twice."""
        ...

    def give_up(self) -> list[int]:
        """Empty the batch. Returns its rows that were not over; they will join again and be drawn anew."""
        ...

    def rows(self) -> dict[int, RowTokens]:
        """Row → its tokens, when all are over. The keys are the `numbers` that the rows have elsewhere."""
        ...


class OneTurn:
    """Every row is one reply.

    Args:
        numbers: of the rows, for the result.
        noise_RT: for each row and place of its reply.
    """

    def __init__(self, numbers: Sequence[int], noise_RT: Tensor, stop_ids: Sequence[int], device: torch.device):
        rows, self.slots = noise_RT.shape
        self.steps_per_check = 1 if device.type == "cpu" else STEPS_PER_CHECK
        self.numbers = numbers
        self.noise_TR = noise_RT.T.to(device)
        self.stop_ids = frozenset(stop_ids)
        self.stop_S = torch.tensor(stop_ids, device=device)
        # one place more than a reply has: rows that are over write there until they are dropped
        self.tokens_TR = torch.full((self.slots + 1, rows), stop_ids[0], device=device)
        self.logps_TR = torch.zeros(self.slots + 1, rows, device=device)
        self.row_R = torch.empty(0, dtype=torch.long, device=device)  # of the batch
        self.place_R = torch.empty(0, dtype=torch.long, device=device)  # of each one's next token
        self.live_R = torch.empty(0, dtype=torch.bool, device=device)

    def join(self, rows: Sequence[int]) -> None:
        row_R = torch.tensor(rows, device=self.row_R.device)
        self.row_R = torch.cat([self.row_R, row_R])
        self.place_R = torch.cat([self.place_R, torch.zeros_like(row_R)])
        self.live_R = torch.cat([self.live_R, torch.ones_like(row_R, dtype=torch.bool)])

    def noise(self) -> Tensor:
        return self.noise_TR[self.place_R.clamp(max=self.slots - 1), self.row_R]

    def take(self, token_R: Tensor, logp_R: Tensor) -> tuple[Tensor, Tensor]:
        self.tokens_TR[self.place_R, self.row_R] = token_R
        self.logps_TR[self.place_R, self.row_R] = logp_R
        self.place_R = (self.place_R + 1).clamp_(max=self.slots)
        self.live_R = self.live_R & (token_R[:, None] != self.stop_S).all(1) & (self.place_R < self.slots)
        return token_R, self.live_R

    def keep(self, index_R: Tensor) -> None:
        self.row_R = self.row_R[index_R]
        self.place_R = self.place_R[index_R]
        self.live_R = self.live_R[index_R]

    def give_up(self) -> list[int]:
        live = self.row_R[self.live_R].tolist()
        self.keep(self.row_R.new_empty(0))
        return live

    def rows(self) -> dict[int, RowTokens]:
        result = {}
        replies = self.tokens_TR[: self.slots].T.tolist()
        logps = self.logps_TR[: self.slots].T.tolist()
        for number, tokens, token_logps in zip(self.numbers, replies, logps, strict=True):
            # behind the token that ends a row the columns mean nothing
            ends = (place for place, token in enumerate(tokens) if token in self.stop_ids)
            length = next(ends, len(tokens) - 1) + 1
            ended = tokens[length - 1] in self.stop_ids
            result[number] = RowTokens(tokens[:length], [True] * length, token_logps[:length], ended)
        return result


class SeveralTurns:
    """Rows that may have several turns, and turns that may end with a piece of text.

    A turn that reaches `slots` tokens, or with which its row has `most_tokens`, is cut and ends the row. So does a turn
    behind which the environment's tokens leave no room for another one.

    Args:
        numbers: of the rows: what `noise` and `next_turn` know them by.
        noise: turn → (all rows, slots). Keyed by row and turn, so that how long others speak changes nothing.
        ends_text: whether the tokens of a turn end it, beside a stop token.
        most_tokens: that a row may add to its prompt, the environment's included.
    """

    steps_per_check = 1  # every token is looked at on the host anyway

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
        most_tokens: int,
    ):
        self.noise_of_turn = noise
        self.stop_ids = frozenset(stop_ids)
        self.device = device
        self.next_turn = next_turn
        self.ends_text = ends_text
        self.slots = slots
        self.most_tokens = most_tokens
        self.numbers = list(numbers)
        self.batch: list[int] = []  # the number of the row in each place of the batch
        self.finished: dict[int, RowTokens] = {}
        self.turn: dict[int, int] = {}
        self.spoken: dict[int, list[int]] = {}  # tokens of the row's current turn
        self.forced: dict[int, deque[int]] = {}
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
        for place, row in enumerate(self.batch):
            if row in self.live and not self.forced[row]:
                values[place] = float(self.noise_of_turn(self.turn[row])[row, len(self.spoken[row])])
        return torch.tensor(values, device=self.device)

    def take(self, token_R: Tensor, logp_R: Tensor) -> tuple[Tensor, Tensor]:
        drawn = dict(zip(self.batch, zip(token_R.tolist(), logp_R.tolist(), strict=True), strict=True))
        taken: dict[int, int] = {}
        for row, (token, logp) in drawn.items():  # a repeated row is looked at once
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
        added = len(self.finished[row].token_ids)
        ended = token in self.stop_ids or self.ends_text(spoken)
        if not ended and len(spoken) < self.slots and added < self.most_tokens:
            return
        follows = end_turn(
            self.finished[row], row, spoken, ended=ended, next_turn=self.next_turn, most_tokens=self.most_tokens
        )
        if not follows:
            self.live.discard(row)
            return
        self.forced[row].extend(follows)
        self.spoken[row] = []
        self.turn[row] += 1

    def keep(self, index_R: Tensor) -> None:
        self.batch = [self.batch[place] for place in index_R.tolist()]

    def give_up(self) -> list[int]:
        live = [row for row, number in enumerate(self.numbers) if number in self.live]
        self.batch = []
        self.live.clear()
        return live

    def rows(self) -> dict[int, RowTokens]:
        return self.finished
