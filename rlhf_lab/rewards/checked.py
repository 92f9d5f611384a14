"""The check every reward passes through: one finite number or NaN per reply; abstentions and failures are counted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from rlhf_lab.core import ranks
from rlhf_lab.core.errors import LabError, NumericError
from rlhf_lab.core.types import FloatArray, Reward, RewardBatch


class CheckedReward:
    """Wraps a reward. Raises NumericError for what is not a number per reply, LabError when the reward fails.

    Args:
        name: shown in errors and tables.
        on_error: `abstain` turns whatever goes wrong into unscored replies, counted in `failed`. KeyboardInterrupt and
            SystemExit always pass.
        timeout_s: a call that takes longer has failed; 0 waits. The call itself cannot be stopped: it goes on in a
            thread that ends with the process.
        collective: whether the processes of a stage share the reward's work, so that all of them call it; else the main
            one calls it for all.
        note: told how many replies are unscored and how many calls failed, after every call once there are some.

    Attributes:
        scored, abstained: replies so far.
        failed: calls that failed and were tolerated.
    """

    def __init__(
        self,
        name: str,
        reward: Reward,
        *,
        on_error: str = "stop",
        timeout_s: float = 0.0,
        collective: bool = False,
        note: Callable[[str], None] = lambda text: None,
    ):
        self.name, self._reward, self.on_error, self.timeout_s, self._note = name, reward, on_error, timeout_s, note
        self.collective = collective
        self.scored = self.abstained = self.failed = 0
        self._first_failure = ""

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        try:
            batch = self._checked(prompts, responses)
        except Exception as error:
            shared = self.collective and ranks.world() > 1  # the others wait for this process: it cannot go on alone
            if self.on_error != "abstain" or shared:
                raise error if isinstance(error, LabError) else _failure(self.name, error) from error
            self.failed += 1
            self._first_failure = self._first_failure or (str(error) or type(error).__name__)
            batch = RewardBatch(np.full(len(responses), np.nan))
        missing = int(np.isnan(batch.total_N).sum())
        self.scored += len(responses) - missing
        self.abstained += missing
        if self.abstained:
            self._note(self._tally())
        return batch

    def _tally(self) -> str:
        text = f"reward {self.name}: {self.abstained} of {self.scored + self.abstained} replies unscored"
        return f"{text}, {self.failed} calls failed, first: {self._first_failure}" if self.failed else text

    def _checked(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        batch = self._called(prompts, responses)
        if not isinstance(batch, RewardBatch) or not isinstance(batch.parts, Mapping):
            raise NumericError(f"reward {self.name} returned {type(batch).__name__}; expected a RewardBatch with parts")
        total_N = scores(batch.total_N, responses, f"reward {self.name}")
        parts = {
            part: scores(values, responses, f"part {part} of reward {self.name}")
            for part, values in batch.parts.items()
        }
        return RewardBatch(total_N, parts)

    def _called(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        if self.collective and ranks.world() > 1:
            return self._reward(prompts, responses)
        return ranks.on_main(lambda: self._timed(prompts, responses))

    def _timed(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        if not self.timeout_s:
            return self._reward(prompts, responses)
        found: list[Any] = []

        def call() -> None:
            try:
                found.append(self._reward(prompts, responses))
            except BaseException as error:
                found.append(error)

        thread = threading.Thread(target=call, name=f"reward-{self.name}", daemon=True)
        thread.start()
        thread.join(self.timeout_s)
        if not found:
            raise LabError(f"reward {self.name} took longer than timeout_s={self.timeout_s}")
        if isinstance(found[0], BaseException):
            raise found[0]
        return found[0]


def scores(values: Any, responses: Sequence[str], what: str) -> FloatArray:
    """Values as one float per reply, (N,); None and masked entries are NaN. Raises NumericError for anything else."""
    if isinstance(values, np.ma.MaskedArray):
        values = np.ma.filled(values.astype(np.float64), np.nan)
    found = np.asarray(values)
    numeric = found.dtype.kind in "biuf" or (
        found.dtype.kind == "O" and all(value is None or isinstance(value, Real) for value in found.ravel())
    )
    if not numeric:
        raise NumericError(f"{what} returned {found.dtype} values; expected real numbers or None")
    if found.shape != (len(responses),):
        raise NumericError(f"{what} returned shape {found.shape} for {len(responses)} replies; expected a number each")
    found_N = found.astype(np.float64)
    if np.isinf(found_N).any():
        worst = int(np.flatnonzero(np.isinf(found_N))[0])
        raise NumericError(f"{what} is infinite for reply {worst}: {responses[worst][:80]!r}")
    return found_N


def _failure(name: str, error: Exception) -> LabError:
    return LabError(
        f"reward {name} failed: {type(error).__name__}: {error}; mend it, or let it abstain with "
        f"reward.terms.{name}.on_error=abstain"
    )
