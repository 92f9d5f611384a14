"""Draws training tasks at the edge of competence: those that the policy solves sometimes, by its own recent episodes.

Of each task a record is kept of its episodes' rewards: their number n and their sum S, both halved whenever the task is
drawn again, so that the record follows the policy. With the rewards of the run so far between `low` and `high`, an
episode's success is (reward − low)/(high − low), 1 and 0 for right and wrong under a verifier, and

    p = (Σ success + ½) / (n + 1)        the success rate, drawn to ½ by half a success in one episode more
    w = 4 p (1 − p)                      the task's weight, at most 1

For episodes that succeed or fail, p (1 − p) is the variance of a success, to which the expected squared advantage of a
group is proportional. The ½ keeps the weight of a task that was always solved, or never, above 0, so that it is tried
again, and makes the record of a single episode worth little. A share of the tasks of an iteration, `explore`, is drawn
evenly from those never tried, as long as there are any; the others by weight from those tried, all without replacement.
Preferring tasks of intermediate success is PLR's idea (arXiv:2010.03934) with the weight that DAPO's filter of groups
(arXiv:2503.14476, section 3.2) applies after sampling.

What is drawn follows from the seed, the iteration and the records, which a checkpoint keeps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlhf_lab.core.types import FloatArray

KEPT = 0.5
"""Share of a task's record that is kept when it is drawn again."""


class EdgeCurriculum:
    """Draws tasks by the policy's success at them.

    Args:
        tasks: how many there are; a task is its position among them.
        explore: share of a draw that comes from tasks never tried, 0…1.
    """

    def __init__(self, tasks: int, explore: float):
        self.explore = explore
        self.episodes_N = np.zeros(tasks)  # n of every task; 0 where it was never tried
        self.rewards_N = np.zeros(tasks)  # S
        self.low = np.inf  # lowest and highest reward of an episode so far
        self.high = -np.inf

    def success(self) -> FloatArray:
        """p of every task, (N,); NaN where it was never tried."""
        n_N = self.episodes_N
        spread = self.high - self.low
        # all rewards the same: nobody knows yet what a success is
        successes_N = (self.rewards_N - n_N * self.low) / spread if spread > 0 else n_N / 2
        return np.where(n_N > 0, (successes_N + 0.5) / (n_N + 1), np.nan)

    def draw(self, count: int, seed: int) -> list[int]:
        """Positions of `count` tasks, without replacement as far as there are so many, in random order."""
        rng = np.random.default_rng(seed)
        order_N = rng.permutation(len(self.episodes_N))
        is_new_N = self.episodes_N[order_N] == 0
        new, tried = order_N[is_new_N], order_N[~is_new_N]
        # At random with the right mean: one task of an iteration may be a third of it.
        explored = int(np.floor(count * self.explore + rng.random()))
        explored = min(max(explored, count - len(tried)), len(new))
        weights = 4 * self.success()[tried] * (1 - self.success()[tried])
        # The largest of log(u)/w are a draw by weight without replacement (Efraimidis & Spirakis 2006).
        keys = np.log(rng.random(len(tried))) / weights
        by_weight = tried[np.argsort(-keys, kind="stable")]
        drawn = np.concatenate([new[:explored], by_weight[: count - explored]])
        order = rng.permutation(drawn).tolist()
        while len(order) < count:  # fewer tasks than are drawn: they are gone through again
            order += order[: count - len(order)]
        return order

    def observe(self, positions: Sequence[int], rewards: Sequence[Sequence[float]]) -> None:
        """Record the rewards of each drawn task's episodes; unscored ones do not count."""
        for position, values in zip(positions, rewards, strict=True):
            scored = [value for value in values if np.isfinite(value)]
            if not scored:
                continue
            self.low = min(self.low, *scored)
            self.high = max(self.high, *scored)
            self.episodes_N[position] = KEPT * self.episodes_N[position] + len(scored)
            self.rewards_N[position] = KEPT * self.rewards_N[position] + sum(scored)

    def metrics(self, positions: Sequence[int]) -> dict[str, float]:
        """What is known of the tasks that an iteration draws, before it is observed; see metrics.py."""
        success = self.success()[list(positions)]
        tried = success[~np.isnan(success)]
        return {
            "curriculum/difficulty": float(1 - tried.mean()) if len(tried) else float("nan"),
            "curriculum/new": float(np.isnan(success).mean()),
            "curriculum/tried": float((self.episodes_N > 0).mean()),
        }

    def state_dict(self) -> dict[str, Any]:
        tried = np.flatnonzero(self.episodes_N)
        return {
            "tasks": tried.tolist(),
            "episodes": self.episodes_N[tried].tolist(),
            "rewards": self.rewards_N[tried].tolist(),
            "bounds": [float(self.low), float(self.high)],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.episodes_N[:] = 0
        self.rewards_N[:] = 0
        self.episodes_N[state["tasks"]] = state["episodes"]
        self.rewards_N[state["tasks"]] = state["rewards"]
        self.low, self.high = state["bounds"]
