"""Stage that makes training data of a reward's favourite attempts: best-of-n of a policy at each training task.

A policy that imitates the rows is an agent trained on the reward, without the noise and the tuning of reinforcement
learning. The reward reads an attempt as in a pair of `algorithm=attempt_pairs`: the entire text after the question.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhf_lab.core.episodes import Episode, Task
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.data.generated import attempt_text
from rlhf_lab.data.transcript import to_conversation
from rlhf_lab.packs.agents.synthesis.settings import RewardTrajectories
from rlhf_lab.packs.agents.synthesis.trajectories import UNFINISHED, environment_of, sampled_attempt
from rlhf_lab.packs.judging.synthesis import making
from rlhf_lab.packs.judging.synthesis.making import Row, SynthesisItem
from rlhf_lab.rewards.graph import build_reward
from rlhf_lab.sampling.policy_responses import PolicyResponses
from rlhf_lab.statistics.inference import clustered_mean
from rlhf_lab.statistics.rows import column
from rlhf_lab.training.run import Result, Run

UNSCORED = "no attempt was scored"


class RewardTrajectoryMaker:
    """Stage `reward_trajectories`."""

    def __init__(self, settings: RewardTrajectories, run: Run):
        self.settings, self.run = settings, run
        environment = environment_of(run)
        reward = build_reward(run)
        if reward is None:
            raise ConfigError("algorithm=reward_trajectories needs a reward; set e.g. +needs.reward=mixed_reward_model")
        self.environment, self.reward = environment, reward
        self.policy = PolicyResponses(run)
        self.tasks = {task.prompt: task for task in run.corpus.tasks("train")}
        self.heldout = {task.prompt for task in run.corpus.tasks("test")}

    def finish(self) -> Result:
        items = making.draw_tasks(self.run, list(self.tasks), self.settings.prompts, "reward_trajectories/tasks")
        rows = making.make_all(self.run, items, self._make_result, "attempting tasks")
        return Result(metrics=self._write(rows), primary=["made/acceptance", "made/success", "made/chosen_success"])

    def _make_result(self, chunk: int, items: Sequence[SynthesisItem]) -> list[Row]:
        tasks = [self.tasks[item.prompt] for item in items]
        seed = self.run.seed("reward_trajectories/attempts", chunk)
        groups = self.policy.collector.collect(self.policy.policy, tasks, self.settings.attempts, seed)
        pairs = zip(tasks, groups, strict=True)
        return [self._row(task, episodes) for task, episodes in pairs]

    def _row(self, task: Task, episodes: Sequence[Episode]) -> Row:
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
        if task.prompt in self.heldout:
            problem = making.CONTAMINATED
        success_N = self._grade(episodes)
        return {
            "prompt": attempt.prompt,
            "completion": attempt.completion,
            "learn_from": len(to_conversation(task.prompt).messages),
            "task": task.prompt,
            "category": str(task.metadata.get("category", "")),
            "turns": attempt.turns,
            "reward": float(reward_N[best]) if scored else None,
            "success": None if success_N is None else float(success_N.mean()),
            "chosen_success": float(success_N[best]) if scored and success_N is not None else None,
            "problem": problem,
        }

    def _grade(self, episodes: Sequence[Episode]) -> np.ndarray | None:
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
