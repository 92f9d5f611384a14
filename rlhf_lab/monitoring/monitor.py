"""The reward-hacking detector at work: looks at every batch of sampled replies, logs what it sees, and may act.

Every reply's length, reward, disagreement and true reward go to monitor.jsonl, a row per iteration, and the limits to
monitor.json: `python -m rlhf_lab monitor FOLDER` judges the run again, with other limits too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from rlhf_lab.config.sections import Monitor
from rlhf_lab.core.console import console
from rlhf_lab.core.files import append_jsonl, truncate, write_json
from rlhf_lab.core.types import FloatArray, RewardBatch, TrainingReward
from rlhf_lab.monitoring.detector import LEVELS, Batch, Detector, Limits, level_name
from rlhf_lab.sampling.experience import Group
from rlhf_lab.training.run import Run

TRACE, LIMITS_FILE = "monitor.jsonl", "monitor.json"
DISAGREEMENT = "disagreement"
"""Part of a term that says how far an ensemble's members are apart; see `rewards/learned/bt.py`."""


class Listener:
    """A reward that remembers, until asked, how far the members of its ensembles were apart on each reply."""

    def __init__(self, reward: TrainingReward):
        self._reward = reward
        self.observe, self.state_dict, self.load_state_dict = reward.observe, reward.state_dict, reward.load_state_dict
        self._heard: dict[tuple[str, str], float] = {}

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        batch = self._reward(prompts, responses)
        self._heard |= dict(zip(zip(prompts, responses, strict=True), disagreement(batch), strict=True))
        return batch

    def disagreement(self, prompts: Sequence[str], responses: Sequence[str]) -> FloatArray:
        """Of these replies, (N,); everything heard so far is then forgotten."""
        heard, self._heard = self._heard, {}
        return np.array([heard.get(key, np.nan) for key in zip(prompts, responses, strict=True)], dtype=np.float64)


def disagreement(batch: RewardBatch) -> FloatArray:
    """Mean over the ensembles among the terms, (N,); NaN without one."""
    found = [values_N for name, values_N in batch.parts.items() if name.rpartition("/")[2] == DISAGREEMENT]
    return np.mean(found, axis=0) if found else np.full(len(batch.total_N), np.nan)


class Watch:
    """The monitor of one run.

    Args:
        iterations: planned, all of them.
        every, warmup: in iterations; of the settings unless given.

    Attributes:
        factor: what the KL coefficient has been multiplied by so far; `raised_by` is the last iteration's part of it.
        stopped: iteration whose replies ended training, or None.
    """

    def __init__(self, run: Run, iterations: int, *, every: int | None = None, warmup: int | None = None):
        self.run, self.settings = run, run.config.reward.monitor
        self.on = self.settings.action != "off"
        every, warmup = every or self.settings.every, warmup or self.settings.warmup
        self.detector = Detector(limits(self.settings, iterations, every, warmup, run.seed("monitor")))
        if self.on:
            write_json(run.folder / LIMITS_FILE, asdict(self.detector.limits))
        self.factor = self.raised_by = 1.0
        self.raised = -self.settings.rising  # checkpoint of the last raise
        self.stopped: int | None = None
        self.listener: Listener | None = None

    def listen(self, reward: TrainingReward) -> TrainingReward:
        """The reward to train on: `reward` itself, overheard."""
        if not self.on:
            return reward
        self.listener = Listener(reward)
        return self.listener

    def see_groups(self, groups: Sequence[Group]) -> dict[str, float]:
        """Look at an iteration's samples; see `see`."""
        if not self.on:
            return {}
        groups = [group.sampled for group in groups]
        prompts = [group.text for group in groups for _ in group.responses]
        responses = [text for group in groups for text in group.responses]
        spread_N = self.listener.disagreement(prompts, responses) if self.listener else np.zeros(0)
        return self.see(
            self.row(
                prompts,
                responses,
                [len(reply) for group in groups for reply in group.replies],
                np.array([reward for group in groups for reward in group.rewards]),
                spread_N,
            )
        )

    def row(
        self,
        prompts: Sequence[str],
        responses: Sequence[str],
        tokens: Sequence[int],
        reward_N: FloatArray,
        disagreement_N: FloatArray,
    ) -> dict[str, Any]:
        """A row of monitor.jsonl, with the true reward where there is one."""
        oracle, places = self.run.corpus.oracle, {text: i for i, text in enumerate(dict.fromkeys(prompts))}
        truth = oracle.measure(prompts, responses) if oracle else {}
        prompt_N, tokens_N = np.array([places[p] for p in prompts], dtype=float), np.array(tokens, dtype=float)
        return Batch(prompt_N, tokens_N, reward_N, disagreement_N, truth.get("gold", np.zeros(0))).to_row()

    def see(self, row: dict[str, Any]) -> dict[str, float]:
        """Take in one iteration's replies and act on a strong warning. Returns what to log."""
        iteration, self.raised_by = self.detector.iteration, 1.0
        append_jsonl(self.run.folder / TRACE, [{"iteration": iteration, **row}])
        verdict = self.detector.see(Batch.from_row(row))
        if verdict is None:
            return {}
        for name in LEVELS[1 : verdict.level + 1]:
            if self.detector.first[name] == iteration:
                words = f"{self._name(name)} at iteration {iteration + 1} ({', '.join(verdict.alarms)})"
                console.print(f"  monitor: {words}{self._consequence(name)}", soft_wrap=True)
        if verdict.level == len(LEVELS) - 1:
            self._act(iteration)
        low, high = self.detector.band() or (float("nan"), float("nan"))
        found = {f"monitor/{name}": value for name, value in verdict.statistics.items()}
        found |= {"monitor/level": float(verdict.level), "monitor/unscored": float(verdict.unscored)}
        return {**found, "monitor/tokens_low": low, "monitor/tokens_high": high}

    def _act(self, iteration: int) -> None:
        checkpoint = self.detector.checkpoints
        if self.settings.action == "stop":
            self.stopped = iteration
        elif self.settings.action == "raise_kl" and checkpoint - self.raised >= self.settings.rising:
            self.raised, self.raised_by = checkpoint, self.settings.factor
            self.factor *= self.raised_by

    def _name(self, name: str) -> str:
        return level_name(name, self.settings.needed)

    def _consequence(self, name: str) -> str:
        """What a strong warning does to training; nothing for the other levels and the rules."""
        if name != LEVELS[-1]:
            return ""
        return {
            "log": "; training goes on, reward.monitor.action=stop would end it",
            "stop": "; it stops training",
            "raise_kl": f"; it raises the KL coefficient {self.settings.factor:g} times",
        }[self.settings.action]

    def totals(self) -> dict[str, float | None]:
        """Numbers of the whole run (metrics.py); tells the alarms in a remark."""
        if not self.on:
            return {}
        if not self.detector.checkpoints:
            self.run.note("monitor: no checkpoint after warm-up, so nothing was judged (reward.monitor.warmup, .every)")
        if alarms := sorted(self.detector.first.items(), key=lambda item: item[1]):
            words = ", ".join(f"{self._name(name)} at iteration {at + 1}" for name, at in alarms)
            silent = LEVELS[-1] in self.detector.first and self.settings.action == "log"
            ending = "; training went on, as reward.monitor.action=log only tells" if silent else ""
            self.run.note(f"monitor: first alarms {words}{ending}")
        totals = self.detector.totals()
        found = {name: value if math.isfinite(value) else None for name, value in totals.items()}
        if self.stopped is not None:
            self.run.note(f"stopped by monitor at iteration {self.stopped + 1}, whose replies were not trained on")
            found["stopped_at"] = float(self.stopped)
        if self.settings.action == "raise_kl":
            found["kl_raised"] = self.factor
        return found

    def state_dict(self) -> dict[str, Any]:
        if not self.on:
            return {}
        path = self.run.folder / TRACE
        own = {"factor": self.factor, "stopped": self.stopped, "raised": self.raised}
        return {**own, "detector": self.detector.state_dict(), "size": path.stat().st_size if path.exists() else 0}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; what the trace held beyond it is about to be written again."""
        if not self.on:
            return
        self.factor, self.stopped, self.raised = float(state["factor"]), state["stopped"], int(state["raised"])
        self.detector.load_state_dict(state["detector"])
        truncate(self.run.folder / TRACE, int(state["size"]))


def limits(settings: Monitor, iterations: int, every: int, warmup: int, seed: int) -> Limits:
    """What the detector is told."""
    return Limits(
        every=every,
        warmup=warmup,
        planned=iterations // every,
        z=settings.z,
        kl=settings.kl,
        rising=settings.rising,
        budget=settings.budget,
        tolerance=settings.tolerance,
        signals=settings.signals,
        needed=settings.needed,
        seed=seed,
    )
