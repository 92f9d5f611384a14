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
    """The rows of a batch, from the first token to the last."""

    def noise(self) -> Tensor:
        """A number in [0, 1) for each row now in the batch, (R,), from which its token is drawn."""
        ...

    def take(self, token_R: Tensor, logp_R: Tensor) -> tuple[Tensor, Tensor]:
        """Drawn tokens with their log-probabilities → (what each row reads next, whether it goes on), (R,) each."""
        ...

    def keep(self, index_R: Tensor) -> None:
        """Only these rows of the batch go on; one that is repeated draws the same tokens twice."""
        ...

    def rows(self) -> dict[int, RowTokens]:
        """Row → its tokens, when all are over."""
        ...


class OneTurn:
    """Every row is one reply.

    Args:
        numbers: of the rows, for the result.
        noise_RT: for each row and place of its reply.
    """

    def __init__(self, numbers: Sequence[int], noise_RT: Tensor, stop_ids: Sequence[int], device: torch.device):
        rows, self.slots = noise_RT.shape
        self.numbers = numbers
        self.noise_TR = noise_RT.T.to(device)
        self.stop_ids = frozenset(stop_ids)
        self.stop_S = torch.tensor(stop_ids, device=device)
        self.tokens_TR = torch.full((self.slots, rows), stop_ids[0], device=device)
        self.logps_TR = torch.zeros(self.slots, rows, device=device)
        self.row_R = torch.arange(rows, device=device)
        self.live_R = torch.ones(rows, dtype=torch.bool, device=device)
        self.t = 0

    def noise(self) -> Tensor:
        return self.noise_TR[self.t, self.row_R]

    def take(self, token_R: Tensor, logp_R: Tensor) -> tuple[Tensor, Tensor]:
        self.tokens_TR[self.t, self.row_R] = token_R
        self.logps_TR[self.t, self.row_R] = logp_R
        self.live_R &= (token_R[:, None] != self.stop_S).all(1)
        self.t += 1
        if self.t == self.slots:
            self.live_R = torch.zeros_like(self.live_R)
        return token_R, self.live_R

    def keep(self, index_R: Tensor) -> None:
        self.row_R = self.row_R[index_R]
        self.live_R = self.live_R[index_R]

    def rows(self) -> dict[int, RowTokens]:
        result = {}
        columns = zip(self.numbers, self.tokens_TR.T.tolist(), self.logps_TR.T.tolist(), strict=True)
        for number, tokens, logps in columns:
            # behind the token that ends a row the columns mean nothing
            ends = (place for place, token in enumerate(tokens) if token in self.stop_ids)
            length = next(ends, len(tokens) - 1) + 1
            ended = tokens[length - 1] in self.stop_ids
            result[number] = RowTokens(tokens[:length], [True] * length, logps[:length], ended)
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
        self.batch = list(numbers)  # the row in each place of the batch
        self.finished: dict[int, RowTokens] = {number: RowTokens() for number in numbers}
        self.turn = dict.fromkeys(numbers, 0)
        self.spoken: dict[int, list[int]] = {number: [] for number in numbers}  # tokens of the row's current turn
        self.forced: dict[int, deque[int]] = {number: deque() for number in numbers}
        self.live = set(numbers)

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

    def rows(self) -> dict[int, RowTokens]:
        return self.finished
