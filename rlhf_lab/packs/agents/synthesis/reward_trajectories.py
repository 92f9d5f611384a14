"""Stage that makes training data of a reward's favourite attempts: best-of-n of a policy at each training task.

A policy that imitates the rows is an agent trained on the reward, without the noise and the tuning of reinforcement
learning. The reward reads an attempt as in a pair of `algorithm=attempt_pairs`: the entire text after the question.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from rlhf_lab.core.episodes import Episode, Task
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.data.generated import attempt_text
from rlhf_lab.packs.agents.synthesis.settings import RewardTrajectories
from rlhf_lab.packs.agents.synthesis.trajectories import UNFINISHED, TrajectoryMaker, sampled_attempt
from rlhf_lab.packs.judging.synthesis import making
from rlhf_lab.packs.judging.synthesis.making import Row, SynthesisItem
from rlhf_lab.rewards.graph import build_reward
from rlhf_lab.sampling.policy_responses import PolicyResponses
from rlhf_lab.statistics.inference import clustered_mean
from rlhf_lab.statistics.rows import column
from rlhf_lab.training.run import Run

UNSCORED = "no attempt was scored"


class RewardTrajectoryMaker(TrajectoryMaker):
    """Stage `reward_trajectories`."""

    name = "reward_trajectories"
    primary: ClassVar[list[str]] = ["made/acceptance", "made/success", "made/chosen_success"]

    def __init__(self, settings: RewardTrajectories, run: Run):
        super().__init__(settings, run, "policy")
        reward = build_reward(run)
        if reward is None:
            raise ConfigError("algorithm=reward_trajectories needs a reward; set e.g. +needs.reward=mixed_reward_model")
        self.reward = reward
        self.policy = PolicyResponses(run)

    def _make_result(self, chunk: int, items: Sequence[SynthesisItem]) -> list[Row]:
        tasks = [self.tasks[item.prompt] for item in items]
        seed = self.run.seed("reward_trajectories/attempts", chunk)
        groups = self.policy.collector.collect(self.policy.policy, tasks, self.settings.attempts, seed)
        return [self.best_row(task, episodes) for task, episodes in zip(tasks, groups, strict=True)]

    def best_row(self, task: Task, episodes: Sequence[Episode]) -> Row:
        """Return the row of a task: the attempt with the highest reward, and of several such attempts the first.

        If the reward scored none of the attempts, the row is the first attempt, with a problem and without a reward.
        """
        texts = [Episode(task, task.prompt, attempt_text(episode)) for episode in episodes]
        reward_N = self.reward(texts).total_N
        # Attempts that a term could not score are never chosen.
        usable_N = np.where(np.isfinite(reward_N), reward_N, -np.inf)
        best = int(np.argmax(usable_N))
        episode = episodes[best]
        attempt = sampled_attempt(episode, None)
        problem = None if episode.finished else UNFINISHED
        scored = bool(np.isfinite(usable_N[best]))
        if not scored:
            problem = UNSCORED
        success_N = self._successes(episodes)
        return {
            **self.row_of(task, attempt, problem),
            "reward": float(reward_N[best]) if scored else None,
            "success": None if success_N is None else float(success_N.mean()),
            "chosen_success": float(success_N[best]) if scored and success_N is not None else None,
        }

    def _successes(self, episodes: Sequence[Episode]) -> np.ndarray | None:
        """Return 1 or 0 per episode, for measurement only; None if the environment does not grade success."""
        correct = self.environment.grade(episodes).get("correct")
        if correct is None:
            return None
        # As in the other stages, an episode that was cut off counts as failed.
        finished_N = np.array([episode.finished for episode in episodes])
        return np.where(finished_N, np.asarray(correct, dtype=np.float64), 0.0)

    def _write(self, rows: Sequence[Row]) -> dict[str, Any]:
        columns = {"teacher": "policy", "selected_by": "reward"}
        kept, rejected = making.write_corpus(self.run, "demonstrations", rows, columns)
        metrics = making.counts(rows, kept, rejected)
        metrics["made/attempts"] = float(self.settings.attempts)
        # The task is the unit of these statistics.
        each_task = np.arange(len(rows))
        for name in ("success", "chosen_success"):
            values = column(rows, name)
            if not np.isnan(values).all():
                metrics[f"made/{name}"] = clustered_mean(values, each_task)
        return metrics


def build(settings: RewardTrajectories, run: Run) -> RewardTrajectoryMaker:
    return RewardTrajectoryMaker(settings, run)
