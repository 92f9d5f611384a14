"""The check every reward passes through: right shape, no infinities, abstentions counted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlhf_lab.errors import NumericError
from rlhf_lab.types import Reward, RewardBatch


class CheckedReward:
    """Wraps a reward. Raises NumericError on a wrong shape or ±inf; counts abstentions (NaN).

    Attributes:
        name: shown in errors and tables.
        scored, abstained: replies so far.
    """

    def __init__(self, name: str, reward: Reward):
        self.name, self._reward = name, reward
        self.scored = self.abstained = 0

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        batch = self._reward(prompts, responses)
        total = np.asarray(batch.total_N, dtype=np.float64)
        if total.shape != (len(responses),):
            raise NumericError(
                f"reward {self.name} returned shape {total.shape} for {len(responses)} replies; expected a number each"
            )
        if np.isinf(total).any():
            worst = int(np.flatnonzero(np.isinf(total))[0])
            raise NumericError(f"reward {self.name} is infinite for reply {worst}: {responses[worst][:80]!r}")
        missing = int(np.isnan(total).sum())
        self.scored += len(responses) - missing
        self.abstained += missing
        return RewardBatch(total, batch.parts)
