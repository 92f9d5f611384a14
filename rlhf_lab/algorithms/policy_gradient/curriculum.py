"""Orders of training tasks: by difficulty, and at the edge of competence.

`by_length` orders tasks by the words of their prompts, the simplest measure of difficulty that needs no policy
(Platanios et al., arXiv:1903.09848, use it for sentences). `ordered_tasks` goes through this order once per run.

`EdgeCurriculum` prefers tasks that the policy solves sometimes, by its own recent episodes.

Each task has a record of its episodes' rewards: their count n and sum S. Both are halved whenever the task is sampled
again, so that the record follows the policy. `low` and `high` are the extreme rewards of the run so far. The success of
an episode is (reward − low)/(high − low), which is 1 or 0 under a verifier, and

    p = (Σ success + ½) / (n + 1)        success rate, shrunk towards ½ by one additional episode with success ½
    w = 4 p (1 − p)                      weight of the task, at most 1

For episodes that succeed or fail, p (1 − p) is the variance of a success. The expected squared advantage of a group is
proportional to it. The ½ keeps the weight of tasks that were always or never solved above 0, so that they are tried
again, and limits the influence of a single episode. A fraction `explore` of the tasks of an iteration is sampled
uniformly from tasks never tried, while there are any. The others are sampled by weight from tried tasks. All sampling
is without replacement. Preferring tasks of intermediate success is the idea of PLR (arXiv:2010.03934); the weight is
the one that DAPO's group filter (arXiv:2503.14476, section 3.2) applies after sampling.

The result depends only on seed, iteration and records. Checkpoints contain the records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlhf_lab.core.types import FloatArray

KEPT = 0.5
"""Fraction of a task's record that is kept when the task is sampled again."""


def by_length(prompts: Sequence[str]) -> list[int]:
    """Return positions of prompts from the fewest to the most words; equal ones keep their order."""
    return sorted(range(len(prompts)), key=lambda position: len(prompts[position].split()))


def ordered_tasks(order: Sequence[int], count: int, iteration: int, iterations: int, seed: int) -> list[int]:
    """Return the positions of an iteration's `count` tasks, sampled from a section of the ordered tasks.

    The section moves from the start of `order` in the first iteration to its end in the last iteration. It has at least
    `count` tasks, if there are that many. Sections are therefore disjoint in short runs and overlap in long ones.

    Args:
        order: positions of all tasks.
        count: number of positions; more than there are tasks repeats them.
        iteration: index of the iteration.
        iterations: number of iterations of the run.
        seed: seed of the random choice within the section.
    """
    size = min(len(order), max(count, -(-len(order) // iterations)))  # −(−a // b) rounds up
    # starts are evenly spaced, so that the last section ends with the last task
    start = round((len(order) - size) * iteration / max(iterations - 1, 1))
    selected = np.random.default_rng(seed).permutation(order[start : start + size]).tolist()
    return (selected * -(-count // size))[:count]


class EdgeCurriculum:
    """A sampler of tasks that depends on the policy's success on them.

    Args:
        tasks: number of tasks; a task is identified by its position.
        explore: fraction of the sampled tasks that were never tried, 0…1.
    """

    def __init__(self, tasks: int, explore: float):
        self.explore = explore
        self.episodes_N = np.zeros(tasks)  # n of every task; 0 if it was never tried
        self.rewards_N = np.zeros(tasks)  # S of every task
        self.low = np.inf  # extreme rewards of an episode so far
        self.high = -np.inf

    def success(self) -> FloatArray:
        """Return the shrunk success rate p of every task, (N,); NaN for a task that was never tried."""
        n_N = self.episodes_N
        spread = self.high - self.low
        # If all rewards are equal, it is unknown which reward is a success; every episode then counts ½.
        successes_N = (self.rewards_N - n_N * self.low) / spread if spread > 0 else n_N / 2
        return np.where(n_N > 0, (successes_N + 0.5) / (n_N + 1), np.nan)

    def draw(self, count: int, seed: int) -> list[int]:
        """Return `count` task positions in random order, without replacement unless there are too few tasks."""
        rng = np.random.default_rng(seed)
        order_N = rng.permutation(len(self.episodes_N))
        is_new_N = self.episodes_N[order_N] == 0
        new, tried = order_N[is_new_N], order_N[~is_new_N]
        # Stochastic rounding keeps the mean right: with few tasks per iteration, rounding down would never explore.
        explored = int(np.floor(count * self.explore + rng.random()))
        # There may be too few tried tasks to fill the rest, or too few new ones.
        explored = min(max(explored, count - len(tried)), len(new))
        weights = 4 * self.success()[tried] * (1 - self.success()[tried])
        # The largest log(u)/w are a weighted sample without replacement (Efraimidis & Spirakis 2006).
        keys = np.log(rng.random(len(tried))) / weights
        by_weight = tried[np.argsort(-keys, kind="stable")]
        selected = np.concatenate([new[:explored], by_weight[: count - explored]])
        order = rng.permutation(selected).tolist()
        while len(order) < count:  # fewer tasks than requested: repeat them
            order += order[: count - len(order)]
        return order

    def observe(self, positions: Sequence[int], rewards: Sequence[Sequence[float]]) -> None:
        """Record the rewards of the episodes of each sampled task; unscored episodes do not count."""
        for position, values in zip(positions, rewards, strict=True):
            scored = [value for value in values if np.isfinite(value)]
            if not scored:
                continue
            self.low = min(self.low, *scored)
            self.high = max(self.high, *scored)
            self.episodes_N[position] = KEPT * self.episodes_N[position] + len(scored)
            self.rewards_N[position] = KEPT * self.rewards_N[position] + sum(scored)

    def metrics(self, positions: Sequence[int]) -> dict[str, float]:
        """Return metrics of the sampled tasks before their rewards are observed (definitions: metrics.py)."""
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
