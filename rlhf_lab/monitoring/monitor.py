"""The reward-hacking detector in a live run: judges every batch of sampled replies, logs its statistics, and may act.

Every reply's length, reward, disagreement and true reward go to monitor.jsonl, a row per iteration, and the limits to
monitor.json: `python -m rlhf_lab monitor FOLDER` judges the run again, also with other limits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from rlhf_lab.core import ranks
from rlhf_lab.core.console import console
from rlhf_lab.core.episodes import Episode
from rlhf_lab.core.files import append_jsonl, read_json, truncate, write_json
from rlhf_lab.core.types import FloatArray, RewardBatch, TrainingReward
from rlhf_lab.monitoring import alerts
from rlhf_lab.monitoring.detector import LEVELS, Batch, Detector, Verdict, level_name
from rlhf_lab.monitoring.trace import LIMITS_FILE, TRACE, limits
from rlhf_lab.sampling.experience import Group, episodes_of
from rlhf_lab.training.run import Run

DISAGREEMENT = "disagreement"
"""Name of the part with the spread of an ensemble's members; see `rewards/learned/bt.py`."""


class Listener:
    """A reward that records what the monitor reads of each reply until the monitor collects it.

    That is the disagreement of its ensembles, and the part that is not the outcome of the task.
    """

    def __init__(self, reward: TrainingReward):
        self._reward = reward
        self.observe = reward.observe
        self.state_dict = reward.state_dict
        self.load_state_dict = reward.load_state_dict
        self._recorded: dict[tuple[str, str], tuple[float, float]] = {}

    def __call__(self, episodes: Sequence[Episode]) -> RewardBatch:
        batch = self._reward(episodes)
        values = zip(disagreement(batch), unverified(batch), strict=True)
        for episode, value in zip(episodes, values, strict=True):
            self._recorded[episode.prompt, episode.response] = value
        return batch

    def recorded(self, episodes: Sequence[Episode]) -> tuple[FloatArray, FloatArray]:
        """Disagreement and unverified part of these episodes, (N,) each; NaN where not scored. Clears the record."""
        recorded, self._recorded = self._recorded, {}
        missing = (np.nan, np.nan)
        values_N2 = [recorded.get((episode.prompt, episode.response), missing) for episode in episodes]
        disagreement_N, unverified_N = np.array(values_N2, dtype=np.float64).reshape(-1, 2).T
        return disagreement_N, unverified_N


def unverified(batch: RewardBatch) -> FloatArray:
    """The part of the rewards that is not the outcome of the task, (N,); NaN where no part of them is."""
    return np.full(len(batch.total_N), np.nan) if batch.unverified_N is None else batch.unverified_N


def disagreement(batch: RewardBatch) -> FloatArray:
    """Mean over the ensembles among the terms, (N,); NaN without one."""
    ensembles = [values_N for name, values_N in batch.parts.items() if name.rpartition("/")[2] == DISAGREEMENT]
    return np.mean(ensembles, axis=0) if ensembles else np.full(len(batch.total_N), np.nan)


class Watch:
    """The monitor of one run.

    Args:
        iterations: planned for the whole run.
        every: iterations per checkpoint; None takes that of the settings.
        warmup: checkpoints of the baseline; None takes that of the settings.

    Attributes:
        factor: what the KL coefficient has been multiplied by so far; `raised_by` is the last iteration's part of it.
        raised: checkpoint at which it was raised last.
        stopped: iteration whose replies ended training, or None.
        pause: why this command saves and ends before it trains on these replies; empty where it goes on.
        listener: the reward that is trained on, if it is monitored.
    """

    def __init__(self, run: Run, iterations: int, *, every: int | None = None, warmup: int | None = None):
        self.run = run
        self.settings = run.config.reward.monitor
        self.on = self.settings.action != "off"
        every = every or self.settings.every
        warmup = warmup or self.settings.warmup
        self.detector = Detector(limits(self.settings, iterations, every, warmup, run.seed("monitor")))
        if self.on:
            write_json(run.folder / LIMITS_FILE, asdict(self.detector.limits))
        self.factor = 1.0
        self.raised_by = 1.0
        self.raised = -self.settings.rising  # far enough back for a raise at the first checkpoint
        self.stopped: int | None = None
        self.pause = ""
        self.iterations = iterations
        self.listener: Listener | None = None

    def listen(self, reward: TrainingReward) -> TrainingReward:
        """The reward to train on: `reward` itself, with its disagreement recorded."""
        if not self.on:
            return reward
        self.listener = Listener(reward)
        return self.listener

    def see_groups(self, groups: Sequence[Group]) -> dict[str, float]:
        """Judge an iteration's samples; see `see`."""
        if not self.on:
            return {}
        groups = [group.sampled for group in groups]
        episodes = episodes_of(groups)
        reward_N = np.array([reward for group in groups for reward in group.rewards])
        disagreement_N, unverified_N = self.listener.recorded(episodes) if self.listener else (np.zeros(0), np.zeros(0))
        return self.see(self.row(episodes, reward_N, disagreement_N, unverified_N))

    def row(
        self, episodes: Sequence[Episode], reward_N: FloatArray, disagreement_N: FloatArray, unverified_N: FloatArray
    ) -> dict[str, Any]:
        """A row of monitor.jsonl, with the true reward where there is one."""
        truth = self.run.measure_samples(episodes)
        prompts = [episode.task.prompt for episode in episodes]
        prompt_ids = {text: i for i, text in enumerate(dict.fromkeys(prompts))}
        batch = Batch(
            prompt_N=np.array([prompt_ids[text] for text in prompts], dtype=float),
            tokens_N=np.array([episode.sampled_tokens for episode in episodes], dtype=float),
            reward_N=reward_N,
            disagreement_N=disagreement_N,
            gold_N=truth.get("gold", np.zeros(0)),
            turns_N=self._turns(episodes),
            unverified_N=unverified_N,
        )
        return batch.to_row()

    def _turns(self, episodes: Sequence[Episode]) -> FloatArray:
        """Turns of each episode, (N,); empty where no environment answers."""
        if self.run.corpus.environment is None:
            return np.zeros(0)
        return np.array([len(episode.turns) for episode in episodes], dtype=float)

    def see(self, row: dict[str, Any]) -> dict[str, float]:
        """Log and judge one iteration's replies, and act on a strong warning. Returns metrics to log."""
        iteration = self.detector.iteration
        self.raised_by = 1.0
        append_jsonl(self.run.folder / TRACE, [{"iteration": iteration, **row}])
        # From the written row, rounded as it is, so that a replay of the trace reaches the same verdict.
        verdict = self.detector.see(Batch.from_row(row))
        if verdict is None:
            return {}
        # a level is announced once
        new_levels = [level for level in LEVELS[1 : verdict.level + 1] if self.detector.first[level] == iteration]
        for level in new_levels:
            alarm = f"{self._level_name(level)} at iteration {iteration + 1} ({', '.join(verdict.alarms)})"
            console.print(f"  monitor: {alarm}{self._consequence(level)}", soft_wrap=True)
        if verdict.level == len(LEVELS) - 1:
            self._act_on_warning(iteration, verdict)
        self._alert(LEVELS[-1:] if self.pause else new_levels, iteration, verdict)
        metrics = {f"monitor/{name}": value for name, value in verdict.statistics.items()}
        metrics["monitor/level"] = float(verdict.level)
        metrics["monitor/unscored"] = float(verdict.unscored)
        low, high = self.detector.band() or (float("nan"), float("nan"))
        metrics["monitor/tokens_low"] = low
        metrics["monitor/tokens_high"] = high
        return metrics

    def _act_on_warning(self, iteration: int, verdict: Verdict) -> None:
        """Stop, pause, or raise the KL coefficient unless it was raised within the last `rising` checkpoints."""
        checkpoint = self.detector.checkpoints
        if self.settings.action == "stop":
            self.stopped = iteration
        elif self._pauses:
            signals = ", ".join(verdict.alarms)
            self.pause = (
                f"{self._level_name(LEVELS[-1])} at iteration {iteration + 1} ({signals}), before the policy learned "
                f"from its replies; look at: python -m rlhf_lab report {self.run.folder}, and give the "
                "same command with alerts.continue_paused=true to go on from here"
            )
        elif self.settings.action == "raise_kl" and checkpoint - self.raised >= self.settings.rising:
            self.raised = checkpoint
            self.raised_by = self.settings.factor
            self.factor *= self.raised_by

    @property
    def _pauses(self) -> bool:
        return self.settings.action == "pause" and not self.run.config.alerts.continue_paused

    def _alert(self, levels: Sequence[str], iteration: int, verdict: Verdict) -> None:
        """Tell the user's command and webhook of the strongest of these levels; note what failed."""
        settings = self.run.config.alerts
        told = [level for level in levels if level in settings.levels]
        if not told or not ranks.is_main():
            return
        payload = alerts.payload(
            self.run.folder,
            read_json(self.run.folder / "manifest.json") or {},
            level=told[-1],
            signals=verdict.alarms,
            iteration=iteration,
            iterations=self.iterations,
            statistics=verdict.statistics,
            action=self.settings.action,
            paused=bool(self.pause),
        )
        for failure in alerts.send(settings, payload):
            console.print(f"  monitor: {failure}; training does not wait for it", markup=False, soft_wrap=True)
            self.run.note(f"alarm at iteration {iteration + 1}: {failure}")

    def _level_name(self, name: str) -> str:
        return level_name(name, self.settings.needed)

    def _consequence(self, level: str) -> str:
        """What a strong warning does to training; nothing for the other levels."""
        if level != LEVELS[-1]:
            return ""
        consequences = {
            "log": "; training goes on, reward.monitor.action=stop would end it",
            "stop": "; it stops training",
            "pause": "; it pauses training" if self._pauses else "; training goes on (alerts.continue_paused=true)",
            "raise_kl": f"; it raises the KL coefficient {self.settings.factor:g} times",
        }
        return consequences[self.settings.action]

    def totals(self) -> dict[str, float | None]:
        """Numbers of the whole run (metrics.py); also notes the alarms among the run's remarks."""
        if not self.on:
            return {}
        if not self.detector.checkpoints:
            self.run.note("monitor: no checkpoint after warm-up, so nothing was judged (reward.monitor.warmup, .every)")
        if alarms := sorted(self.detector.first.items(), key=lambda item: item[1]):
            listed = ", ".join(f"{self._level_name(name)} at iteration {first + 1}" for name, first in alarms)
            went_on = LEVELS[-1] in self.detector.first and self.settings.action == "log"
            ending = "; training went on, as reward.monitor.action=log only tells" if went_on else ""
            self.run.note(f"monitor: first alarms {listed}{ending}")
        totals = self.detector.totals()
        metrics = {name: value if math.isfinite(value) else None for name, value in totals.items()}
        if self.stopped is not None:
            self.run.note(f"stopped by monitor at iteration {self.stopped + 1}, whose replies were not trained on")
            metrics["stopped_at"] = float(self.stopped)
        if self.settings.action == "raise_kl":
            metrics["kl_raised"] = self.factor
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """The state that a checkpoint stores, with the size of the trace at that point."""
        if not self.on:
            return {}
        path = self.run.folder / TRACE
        return {
            "factor": self.factor,
            "stopped": self.stopped,
            "raised": self.raised,
            # a command that was killed before it could say that it paused pauses again
            **({"pause": self.pause} if self.pause else {}),
            "detector": self.detector.state_dict(),
            "size": path.stat().st_size if path.exists() else 0,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a checkpoint: rows of the trace after it are cut off, since their iterations run again."""
        if not self.on:
            return
        self.factor = float(state["factor"])
        self.stopped = state["stopped"]
        self.raised = int(state["raised"])
        if self._pauses:
            self.pause = state.get("pause", "")
        self.detector.load_state_dict(state["detector"])
        truncate(self.run.folder / TRACE, int(state["size"]))
