"""The reward-hacking detector in a live run: it judges every batch of responses, logs its statistics, and may act.

The length, reward and true reward of every response are written to monitor.jsonl, one row per iteration,
and the limits to monitor.json. `python -m rlhf_lab monitor DIR` judges the run again, optionally with other limits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from rlhf_lab.core.console import console
from rlhf_lab.core.episodes import Episode
from rlhf_lab.core.files import append_jsonl, truncate, write_json
from rlhf_lab.core.types import FloatArray, RewardBatch, TrainingReward
from rlhf_lab.monitoring import alerts
from rlhf_lab.monitoring.detector import (
    LEVELS,
    Detector,
    DetectorSettings,
    DetectorVerdict,
    IterationBatch,
    level_name,
)
from rlhf_lab.monitoring.settings import LIMITS_FILE, TRACE
from rlhf_lab.monitoring.truth import GoldTruth
from rlhf_lab.sampling.experience import EpisodeGroup, episodes_of
from rlhf_lab.statistics.estimates import finite_or_none
from rlhf_lab.training.run import Run


class Listener:
    """A reward that records for each response the part that is not the outcome, until the monitor collects it."""

    def __init__(self, reward: TrainingReward):
        self._reward = reward
        # training uses the listener as the reward, so it needs the same interface
        self.observe = reward.observe
        self.state_dict = reward.state_dict
        self.load_state_dict = reward.load_state_dict
        self._recorded: dict[tuple[str, str], float] = {}

    def __call__(self, episodes: Sequence[Episode]) -> RewardBatch:
        batch = self._reward(episodes)
        for episode, value in zip(episodes, unverified(batch).tolist(), strict=True):
            self._recorded[episode.prompt, episode.response] = value
        return batch

    def recorded(self, episodes: Sequence[Episode]) -> FloatArray:
        """Return what was recorded for these episodes, (N,), NaN for unscored ones, and clear the record."""
        recorded, self._recorded = self._recorded, {}
        keys = [(episode.prompt, episode.response) for episode in episodes]
        return np.array([recorded.get(key, np.nan) for key in keys], dtype=np.float64)


def unverified(batch: RewardBatch) -> FloatArray:
    """Return the part of the rewards that is not the outcome of the task, (N,); NaN if no part is the outcome."""
    return np.full(len(batch.total_N), np.nan) if batch.unverified_N is None else batch.unverified_N


class Watch:
    """The monitor of one run.

    Args:
        iterations: planned number of iterations of the entire run.
        every: iterations per checkpoint; None is the value of the settings.
        warmup: checkpoints of the baseline; None is the value of the settings.

    Attributes:
        stopped: iteration whose responses ended training, or None.
        pause: reason why this command saves and ends before it trains on these responses; empty if it continues.
        listener: reward that is used for training, if it is monitored.
    """

    def __init__(self, run: Run, iterations: int, *, every: int | None = None, warmup: int | None = None):
        self.run = run
        self.settings = run.config.reward.monitor
        self.on = self.settings.action != "off"
        limits = DetectorSettings.of(
            self.settings,
            iterations,
            every=every or self.settings.every,
            warmup=warmup or self.settings.warmup,
            seed=run.seed("monitor"),
        )
        self.detector = Detector(limits)
        if self.on:
            write_json(run.directory / LIMITS_FILE, asdict(self.detector.limits))
        self.stopped: int | None = None
        self.pause = ""
        self.iterations = iterations
        self.listener: Listener | None = None

    def listen(self, reward: TrainingReward) -> TrainingReward:
        """Return the reward to train on: `reward` itself, with the monitor's inputs recorded."""
        if not self.on:
            return reward
        self.listener = Listener(reward)
        return self.listener

    def see_groups(self, groups: Sequence[EpisodeGroup]) -> dict[str, float]:
        """Judge all sampled responses of an iteration, given in groups; see `see`."""
        if not self.on:
            return {}
        # the monitor judges all samples, including those that a filter removed
        groups = [group.sampled for group in groups]
        episodes = episodes_of(groups)
        reward_N = np.array([reward for group in groups for reward in group.rewards])
        unverified_N = self.listener.recorded(episodes) if self.listener else np.zeros(0)
        return self.see(self.row(episodes, reward_N, unverified_N))

    def row(self, episodes: Sequence[Episode], reward_N: FloatArray, unverified_N: FloatArray) -> dict[str, Any]:
        """Return a row of monitor.jsonl, including the true reward if it is known."""
        truth = self.run.measure_samples(episodes)
        prompts = [episode.task.prompt for episode in episodes]
        prompt_ids = {text: i for i, text in enumerate(dict.fromkeys(prompts))}
        ids = [prompt_ids[text] for text in prompts]
        tokens = [episode.sampled_tokens for episode in episodes]
        batch = IterationBatch(
            prompt_N=np.array(ids, dtype=float),
            tokens_N=np.array(tokens, dtype=float),
            reward_N=reward_N,
            gold_N=truth.get("gold", np.zeros(0)),
            turns_N=self._turns(episodes),
            unverified_N=unverified_N,
        )
        return batch.to_row()

    def _turns(self, episodes: Sequence[Episode]) -> FloatArray:
        """Return the number of turns of each episode, (N,); empty without an environment."""
        if self.run.corpus.environment is None:
            return np.zeros(0)
        return np.array([len(episode.turns) for episode in episodes], dtype=float)

    def see(self, row: dict[str, Any]) -> dict[str, float]:
        """Log and judge one iteration's responses, and act on a strong warning. Returns metrics to log."""
        iteration = self.detector.iteration
        append_jsonl(self.run.directory / TRACE, [{"iteration": iteration, **row}])
        # The row is read back as written, i.e. rounded, so that a replay of the trace reaches the same verdict.
        verdict = self.detector.see(IterationBatch.from_row(row))
        if verdict is None:
            return {}
        # each level is announced only once
        reached = LEVELS[1 : verdict.level + 1]
        new_levels = [level for level in reached if self.detector.first[level] == iteration]
        rules = ", ".join(verdict.alarms)
        for level in new_levels:
            alarm = f"{self._level_name(level)} at iteration {iteration + 1} ({rules})"
            console.inform(f"  monitor: {alarm}{self._consequence(level)}")
        # a strong warning acts at every checkpoint, not only at the first one
        if verdict.level == len(LEVELS) - 1:
            self._act_on_warning(iteration, rules)
        # a pause is always announced, because nobody may be watching the console
        self._alert(LEVELS[-1:] if self.pause else new_levels, iteration, verdict)
        metrics = {f"monitor/{name}": value for name, value in verdict.statistics.items()}
        metrics["monitor/level"] = float(verdict.level)
        metrics["monitor/unscored"] = float(verdict.unscored)
        metrics["monitor/tokens_low"], metrics["monitor/tokens_high"] = self.detector.band() or (math.nan, math.nan)
        return metrics

    def _act_on_warning(self, iteration: int, rules: str) -> None:
        """Stop or pause, if the settings say so."""
        if self.settings.action == "stop":
            self.stopped = iteration
        elif self._pauses:
            self.pause = (
                f"{self._level_name(LEVELS[-1])} at iteration {iteration + 1} ({rules}), before the policy was "
                f"trained on its responses; check python -m rlhf_lab report {self.run.directory}, and repeat the "
                "command with alerts.continue_paused=true to resume from here"
            )

    @property
    def _pauses(self) -> bool:
        return self.settings.action == "pause" and not self.run.config.alerts.continue_paused

    def _alert(self, levels: Sequence[str], iteration: int, verdict: DetectorVerdict) -> None:
        stated = [level for level in levels if level in self.run.config.alerts.levels]
        if stated:
            alarm = alerts.Alarm(
                level=stated[-1],
                signals=verdict.alarms,
                iteration=iteration,
                iterations=self.iterations,
                statistics=verdict.statistics,
                action=self.settings.action,
                paused=bool(self.pause),
            )
            alerts.announce(self.run, alarm)

    def _level_name(self, name: str) -> str:
        return level_name(name, self.settings.signals, parting=self.detector.parting_suffices)

    def _consequence(self, level: str) -> str:
        """Return the effect of a strong warning on training as text; empty for the other levels."""
        if level != LEVELS[-1]:
            return ""
        consequences = {
            "log": "; training continues, reward.monitor.action=stop would end it",
            "stop": "; it stops training",
            "pause": "; it pauses training" if self._pauses else "; training continues (alerts.continue_paused=true)",
        }
        return consequences[self.settings.action]

    def totals(self, truth: GoldTruth | None) -> dict[str, float | None]:
        """Return the metrics of the entire run (metrics.py), and add the alarms to the run's notes.

        Args:
            truth: whether gold fell on held-out prompts, with which the alarms are judged; None if unknown.
        """
        if not self.on:
            return {}
        if not self.detector.checkpoints:
            self.run.note("monitor: no checkpoint after warm-up, so nothing was judged (reward.monitor.warmup, .every)")
        if alarms := sorted(self.detector.first.items(), key=lambda item: item[1]):
            listed = ", ".join(f"{self._level_name(name)} at iteration {first + 1}" for name, first in alarms)
            went_on = LEVELS[-1] in self.detector.first and self.settings.action == "log"
            ending = "; training continued, because reward.monitor.action=log only reports" if went_on else ""
            self.run.note(f"monitor: first alarms {listed}{ending}")
        metrics = {name: finite_or_none(value) for name, value in self.detector.totals(truth).items()}
        if self.stopped is not None:
            self.run.note(f"stopped by monitor at iteration {self.stopped + 1}, whose responses were not trained on")
            metrics["stopped_at"] = float(self.stopped)
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, including the current size of the trace."""
        if not self.on:
            return {}
        path = self.run.directory / TRACE
        return {
            "stopped": self.stopped,
            # a command that was killed before it reported its pause will pause again
            **({"pause": self.pause} if self.pause else {}),
            "detector": self.detector.state_dict(),
            "size": path.stat().st_size if path.exists() else 0,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a checkpoint. Later rows of the trace are removed, because their iterations run again."""
        if not self.on:
            return
        self.stopped = state["stopped"]
        if self._pauses:
            self.pause = state.get("pause", "")
        self.detector.load_state_dict(state["detector"])
        truncate(self.run.directory / TRACE, int(state["size"]))
