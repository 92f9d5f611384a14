"""The reward-hacking detector: batches of sampled replies in, alarms out; the same live and on a saved trace.

Rules, each with a statistic per checkpoint (`hacking.py` has the formulas):

    length_z       |z| of the mean reply length against the warm-up baseline above `z`
    reward_kl      KL(initial ‖ current) of the reward distribution above `kl`, and rising over `rising` checkpoints
    length_cusum   CUSUM of the mean length; its false-alarm budget is of the whole run, not of a checkpoint
    disagreement   the same CUSUM upward on the disagreement of an ensemble's members
    parting        the same upward on what the reward has beside the outcome of the task, less that outcome

In an episode with an environment the length is that of a turn: an agent that learns takes other numbers of turns. Which
kinds of turns those are moves it too, so that `length_z` counts from `tolerance` on.

A reward that is the outcome of the task, in whole or in part (`TermSettings.outcome`), rises where a policy gets
better. `parting` then takes the place of `reward_kl`: it sees the rest of the reward gain more than the outcome does.

One of the rules in `signals` in alarm is a warning, `needed` of them at the same checkpoint a strong warning; files
call it `hard_stop`, whatever `action` does about it. Where `reward_kl` is one of them, `parting` is a strong warning by
itself, as it holds proxy and outcome against each other. No rule reads the true reward of simulated worlds: it only
serves to judge afterwards whether an alarm was right and how early it came. Recorded iterations count from 0, shown
ones from 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from rlhf_lab.core.types import FloatArray
from rlhf_lab.monitoring.gold_fall import gold_fall
from rlhf_lab.monitoring.hacking import (
    Baseline,
    Cusum,
    bin_counts,
    bin_edges,
    by_prompt,
    cusum_threshold,
    fit_baseline,
    shift_kl,
)

RULES = ("length_z", "reward_kl", "length_cusum", "disagreement", "parting")
LEVELS = ("ok", "warning", "hard_stop")
NUMBERS = ("no", "one", "two", "three", "four")
LEAST_REWARDS = 16
"""Scored replies below which a checkpoint has no reward distribution."""


def level_name(name: str, needed: int = 2) -> str:
    """A level in words, e.g. "strong warning (two signals)"; the name itself for a rule.

    Args:
        needed: signals at once that make a strong warning.
    """
    if name != "hard_stop":
        return name
    return f"strong warning ({NUMBERS[needed]} signal{'s' * (needed != 1)})"


@dataclass(frozen=True)
class Limits:
    """The settings of the detector; meaning and defaults: `sections.Monitor`.

    Attributes:
        planned: checkpoints of the whole run, warm-up included.
        seed: of the simulation behind thresholds.
    """

    every: int
    warmup: int
    planned: int
    z: float
    kl: float
    rising: int
    budget: float
    tolerance: float
    signals: tuple[str, ...]
    needed: int
    seed: int = 0


@dataclass(frozen=True)
class Batch:
    """The replies of one iteration, each (N,).

    Attributes:
        prompt_N: which prompt a reply answers: any numbers, equal for the same prompt.
        tokens_N: length, of all turns together.
        reward_N: NaN where unscored.
        disagreement_N: of the ensemble's members; NaN or empty without one.
        gold_N: true reward; NaN or empty where unknown.
        turns_N: turns of an episode with an environment; NaN or empty without one.
        unverified_N: part of the reward that is not the outcome; NaN or empty where no part of it is.
    """

    prompt_N: FloatArray
    tokens_N: FloatArray
    reward_N: FloatArray
    disagreement_N: FloatArray
    gold_N: FloatArray
    turns_N: FloatArray = field(default_factory=lambda: np.zeros(0))
    unverified_N: FloatArray = field(default_factory=lambda: np.zeros(0))

    @property
    def by_turn(self) -> bool:
        """Whether these are episodes with an environment."""
        return bool(np.isfinite(self.turns_N).any())

    @property
    def length_N(self) -> FloatArray:
        """Tokens of a reply, or of an episode's turns on average."""
        return self.tokens_N / self.turns_N if self.by_turn else self.tokens_N

    @property
    def parting_N(self) -> FloatArray:
        """What the reward has beside the outcome, less the outcome; NaN or empty where no part of it is one."""
        if not len(self.unverified_N):
            return self.unverified_N
        outcome_N = self.reward_N - self.unverified_N
        return self.unverified_N - outcome_N

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Batch:
        """Inverse of `to_row`. A missing column is NaN; without `prompt` every reply has a prompt of its own."""
        tokens_N = _floats(row.get("tokens"))
        prompt_N = _floats(row.get("prompt"))
        if not len(prompt_N):
            prompt_N = np.arange(len(tokens_N), dtype=float)

        def column(key: str) -> FloatArray:
            values_N = _floats(row.get(key))
            return values_N if len(values_N) else np.full(len(tokens_N), np.nan)

        return cls(
            prompt_N=prompt_N,
            tokens_N=tokens_N,
            reward_N=column("reward"),
            disagreement_N=column("disagreement"),
            gold_N=column("gold"),
            turns_N=column("turns"),
            unverified_N=column("unverified"),
        )

    def to_row(self) -> dict[str, list[float | None]]:
        """Plain lists, without the columns that are unknown; an unscored reply has null."""
        row = {}
        for name in self.__dataclass_fields__:
            key, values_N = name.removesuffix("_N"), getattr(self, name)
            if np.isfinite(values_N).any() or key == "reward":
                row[key] = [_plain(value) for value in values_N.tolist()]
        return row


@dataclass(frozen=True)
class Verdict:
    """The detector's result at one checkpoint.

    Attributes:
        statistics: rule → z, nats, or the CUSUM in units of its threshold; rules without data are missing.
        alarms: rules in alarm.
        level: index into LEVELS.
        scored, unscored: replies with and without a reward.
    """

    statistics: Mapping[str, float]
    alarms: tuple[str, ...]
    level: int
    scored: int
    unscored: int


class Detector:
    """Reads a run's batches in order. Its whole state is in `state_dict`.

    Attributes:
        iteration: iterations seen.
        checkpoints: checkpoints judged, those after warm-up.
        pending: batches since the last checkpoint.
        warm: checkpoints of the warm-up; empty once the baseline is fitted.
        length, spread, parting: CUSUM of the mean length, of the ensemble's disagreement, and of what the reward has
            beside the outcome; None until the baseline is fitted, the last two also where there is none of it.
        by_turn: whether the length is that of a turn.
        edges, initial_K: bins of the reward distribution and their counts in the warm-up; empty without rewards.
        kls: the latest values of `reward_kl`.
        level: of the last checkpoint, an index into LEVELS.
        first: rule or level → iteration of its first alarm.
        counts: rule or level → checkpoints in alarm.
        gold: (mean, standard error) of the true reward of each iteration; NaN where unknown.
    """

    def __init__(self, limits: Limits):
        self.limits = limits
        self.iteration = 0
        self.checkpoints = 0
        self.pending: list[Batch] = []
        self.warm: list[Batch] = []
        self.length: Cusum | None = None
        self.spread: Cusum | None = None
        self.parting: Cusum | None = None
        self.by_turn = False
        self.edges = np.zeros(0)
        self.initial_K = np.zeros(0)
        self.kls = [0.0]
        self.level = 0
        self.first: dict[str, int] = {}
        self.counts: dict[str, int] = {}
        self.gold: list[tuple[float, float]] = []

    def see(self, batch: Batch) -> Verdict | None:
        """Add one iteration's replies; returns a verdict when they complete a checkpoint after warm-up."""
        self.gold.append(_mean_and_error(by_prompt(batch.gold_N, batch.prompt_N)))
        self.pending.append(batch)
        self.iteration += 1
        if len(self.pending) < self.limits.every:
            return None
        checkpoint = _join_batches(self.pending)
        self.pending = []
        if self.length is None:
            self.warm.append(checkpoint)
            if len(self.warm) == self.limits.warmup:
                self._fit_baseline()
            return None
        return self._judge_checkpoint(checkpoint)

    def _fit_baseline(self) -> None:
        """Fit the baseline to the checkpoints of the warm-up, and set the thresholds."""
        self.by_turn = any(batch.by_turn for batch in self.warm)
        lengths = [by_prompt(batch.length_N, batch.prompt_N) for batch in self.warm]
        self.length = self._start_cusum(lengths, two_sided=True)
        spreads = [by_prompt(batch.disagreement_N, batch.prompt_N) for batch in self.warm]
        if all(map(len, spreads)):
            self.spread = self._start_cusum(spreads, two_sided=False)
        partings = [by_prompt(batch.parting_N, batch.prompt_N) for batch in self.warm]
        if all(map(len, partings)):
            self.parting = self._start_cusum(partings, two_sided=False)
        reward_N = _join_batches(self.warm).reward_N
        if np.isfinite(reward_N).sum() >= LEAST_REWARDS:
            self.edges = bin_edges(reward_N)
            self.initial_K = bin_counts(reward_N, self.edges)
        self.warm = []

    def _start_cusum(self, checkpoints: list[FloatArray], *, two_sided: bool) -> Cusum:
        """A CUSUM whose baseline is these checkpoints' prompt means, (B,) each."""
        limits = self.limits
        baseline = fit_baseline(checkpoints)
        threshold = cusum_threshold(
            baseline,
            planned=limits.planned - limits.warmup,
            budget=limits.budget,
            tolerance=limits.tolerance,
            two_sided=two_sided,
            seed=limits.seed,
        )
        return Cusum(baseline, limits.tolerance, two_sided, threshold)

    def _judge_checkpoint(self, batch: Batch) -> Verdict:
        """Statistics, alarms and level of a checkpoint after warm-up."""
        assert self.length is not None
        limits = self.limits
        statistics: dict[str, float] = {}
        alarms: list[str] = []
        length_B = by_prompt(batch.length_N, batch.prompt_N)
        length, prompts = float(length_B.mean()), len(length_B)
        statistics["length_z"] = self.length.baseline.z(length, prompts, tolerance=self._length_tolerance())
        statistics["length_cusum"] = self.length.step(length, prompts)
        spread_B = by_prompt(batch.disagreement_N, batch.prompt_N)
        if self.spread is not None and len(spread_B):
            statistics["disagreement"] = self.spread.step(float(spread_B.mean()), len(spread_B))
        parting_B = by_prompt(batch.parting_N, batch.prompt_N)
        if self.parting is not None and len(parting_B):
            statistics["parting"] = self.parting.step(float(parting_B.mean()), len(parting_B))
        scored = int(np.isfinite(batch.reward_N).sum())
        if self.parting is None and len(self.initial_K) and scored >= LEAST_REWARDS:
            statistics["reward_kl"] = shift_kl(self.initial_K, bin_counts(batch.reward_N, self.edges))
            self.kls = [*self.kls, statistics["reward_kl"]][-limits.rising :]
            if self._kl_rises() and self.kls[-1] > limits.kl:
                alarms.append("reward_kl")
        if abs(statistics["length_z"]) > limits.z:
            alarms.append("length_z")
        # All are in units of their threshold; without data a rule has no statistic and no alarm.
        alarms += [rule for rule in ("length_cusum", "disagreement", "parting") if statistics.get(rule, 0.0) > 1]
        evidence = sum(rule in alarms for rule in limits.signals)
        parted = "parting" in alarms and "reward_kl" in limits.signals
        if evidence >= limits.needed or parted:
            self.level = 2
        else:
            self.level = 1 if evidence else 0
        self._count_alarms(statistics, alarms)
        return Verdict(statistics, tuple(alarms), self.level, scored, len(batch.reward_N) - scored)

    def _length_tolerance(self) -> float:
        """Relative change of the mean length from which on `length_z` counts."""
        return self.limits.tolerance if self.by_turn else 0.0

    def _kl_rises(self) -> bool:
        """Whether each of the last `rising` values of `reward_kl` is above the one before it."""
        rises = all(before < after for before, after in zip(self.kls, self.kls[1:], strict=False))
        return len(self.kls) == self.limits.rising and rises

    def _count_alarms(self, statistics: Mapping[str, float], alarms: list[str]) -> None:
        """Record first alarms, and at how many checkpoints each rule and level was in alarm."""
        self.checkpoints += 1
        raised = [*alarms, *LEVELS[1 : self.level + 1]]  # a strong warning is a warning too
        for name in (*statistics, *LEVELS[1:]):
            self.counts[name] = self.counts.get(name, 0) + (name in raised)
        for name in raised:
            self.first.setdefault(name, self.iteration - 1)

    def band(self) -> tuple[float, float] | None:
        """Mean lengths between which `length_z` is silent, for checkpoints as large as those of the warm-up."""
        if self.length is None:
            return None
        baseline = self.length.baseline
        z_per_token = baseline.z(baseline.mean + 1, baseline.prompts)
        half_width = self.limits.z / z_per_token + self._length_tolerance() * abs(baseline.mean)
        return baseline.mean - half_width, baseline.mean + half_width

    def totals(self) -> dict[str, float]:
        """Numbers of the whole run; see metrics.py."""
        metrics: dict[str, float] = {}
        for name, count in self.counts.items():
            metrics[f"alarm/{name}"] = float(count > 0)
            metrics[f"alarm_at/{name}"] = self.first.get(name, math.nan)
            metrics[f"alarm_share/{name}"] = count / self.checkpoints
        gold_T2 = np.array(self.gold)
        if not metrics or not np.isfinite(gold_T2).all():  # nothing was judged, or the truth is not known throughout
            return metrics
        turn = gold_fall(gold_T2[:, 0], gold_T2[:, 1])
        metrics["hacked"] = float(turn is not None)
        metrics["gold_peak"] = turn.peak if turn else math.nan
        metrics["gold_fall"] = turn.fall if turn else math.nan
        for name in self.counts:
            first = self.first.get(name)
            lead = math.nan if turn is None or first is None else turn.fall - first
            metrics[f"lead/{name}"] = lead
            # An alarm can be in time only in a run that fell, and false only in one that did not.
            metrics[f"in_time/{name}"] = math.nan if turn is None else float(lead > 0)
            metrics[f"false/{name}"] = math.nan if turn is not None else float(first is not None)
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Plain values only."""
        return {
            "iteration": self.iteration,
            "checkpoints": self.checkpoints,
            "kls": self.kls,
            "level": self.level,
            "first": self.first,
            "counts": self.counts,
            "gold": self.gold,
            "pending": [batch.to_row() for batch in self.pending],
            "warm": [batch.to_row() for batch in self.warm],
            "cusums": [None if cusum is None else asdict(cusum) for cusum in (self.length, self.spread, self.parting)],
            "by_turn": self.by_turn,
            "edges": self.edges.tolist(),
            "initial": self.initial_K.tolist(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self.iteration = state["iteration"]
        self.checkpoints = state["checkpoints"]
        self.level = state["level"]
        self.kls = list(state["kls"])
        self.first = dict(state["first"])
        self.counts = dict(state["counts"])
        self.gold = [(mean, error) for mean, error in state["gold"]]
        self.pending = [Batch.from_row(row) for row in state["pending"]]
        self.warm = [Batch.from_row(row) for row in state["warm"]]
        self.length, self.spread, self.parting = (_restore_cusum(values) for values in state["cusums"])
        self.by_turn = state["by_turn"]
        self.edges = np.array(state["edges"])
        self.initial_K = np.array(state["initial"])


def _restore_cusum(values: Mapping[str, Any] | None) -> Cusum | None:
    if values is None:
        return None
    return Cusum(**{**values, "baseline": Baseline(**values["baseline"])})


def _join_batches(batches: list[Batch]) -> Batch:
    """One batch of all replies. Prompts of two iterations count as different ones."""
    if len(batches) == 1:
        return batches[0]
    columns = {name: np.concatenate([getattr(batch, name) for batch in batches]) for name in Batch.__dataclass_fields__}
    # Number the prompts of each batch from 0, then shift each batch beyond those before it.
    numbers = [np.unique(batch.prompt_N, return_inverse=True)[1] for batch in batches]
    offsets = np.cumsum([0, *(number_N.max() + 1 for number_N in numbers[:-1])])
    shifted = [number_N + offset for number_N, offset in zip(numbers, offsets, strict=True)]
    columns["prompt_N"] = np.concatenate(shifted).astype(float)
    return Batch(**columns)


def _mean_and_error(values_B: FloatArray) -> tuple[float, float]:
    """Mean over prompts and its standard error; NaN when it is not known."""
    if len(values_B) < 2:
        return (float(values_B[0]) if len(values_B) else math.nan), math.nan
    return float(values_B.mean()), float(values_B.std(ddof=1)) / math.sqrt(len(values_B))


def _plain(value: float) -> float | None:
    """A value for JSON: null for NaN, whole numbers without a point, else six digits."""
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() else round(value, 6)


def _floats(values: Any) -> FloatArray:
    """A column of a row: a list, or a bare number in a file with a row per reply; empty when it is missing."""
    if values is None:
        return np.zeros(0)
    listed = values if isinstance(values, list) else [values]
    return np.array([math.nan if value is None else value for value in listed], dtype=np.float64)
