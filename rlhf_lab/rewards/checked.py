"""The check every reward passes through: right shape, no infinities; abstentions and tolerated failures counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooLate

import numpy as np

from rlhf_lab.errors import LabError, NumericError
from rlhf_lab.types import Reward, RewardBatch


class CheckedReward:
    """Wraps a reward. Raises NumericError on a wrong shape or ±inf, LabError when it fails; counts abstentions (NaN).

    Args:
        name: shown in errors and tables.
        on_error: `abstain` turns whatever goes wrong into unscored replies, counted in `failed`.
        timeout_s: a call that takes longer has failed; 0 waits. The call itself cannot be stopped and goes on in its
            thread.
        note: told about the first tolerated failure.

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
        note: Callable[[str], None] = lambda text: None,
    ):
        self.name, self._reward, self.on_error, self.timeout_s, self._note = name, reward, on_error, timeout_s, note
        self.scored = self.abstained = self.failed = 0

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        try:
            batch = self._checked(prompts, responses)
        except Exception as error:
            if self.on_error != "abstain":
                raise error if isinstance(error, LabError) else _failure(self.name, error) from error
            self.failed += 1
            self._note(f"reward {self.name} failed and left replies unscored, first: {error}")
            batch = RewardBatch(np.full(len(responses), np.nan))
        missing = int(np.isnan(batch.total_N).sum())
        self.scored += len(responses) - missing
        self.abstained += missing
        return batch

    def _checked(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        batch = self._called(prompts, responses)
        total = np.asarray(batch.total_N, dtype=np.float64)
        if total.shape != (len(responses),):
            raise NumericError(
                f"reward {self.name} returned shape {total.shape} for {len(responses)} replies; expected a number each"
            )
        if np.isinf(total).any():
            worst = int(np.flatnonzero(np.isinf(total))[0])
            raise NumericError(f"reward {self.name} is infinite for reply {worst}: {responses[worst][:80]!r}")
        return RewardBatch(total, batch.parts)

    def _called(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        if not self.timeout_s:
            return self._reward(prompts, responses)
        pool = ThreadPoolExecutor(1, thread_name_prefix=f"reward-{self.name}")
        try:
            return pool.submit(self._reward, prompts, responses).result(self.timeout_s)
        except TooLate:
            raise LabError(f"reward {self.name} took longer than timeout_s={self.timeout_s}") from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _failure(name: str, error: Exception) -> LabError:
    return LabError(
        f"reward {name} failed: {type(error).__name__}: {error}; mend it, or let it abstain with "
        f"reward.terms.{name}.on_error=abstain"
    )
