"""The reward-hacking detector: it reads batches of sampled responses and raises alarms, live or on a saved trace.

It has these rules, each with a statistic per checkpoint (`hacking.py` has the formulas):

    length_z       |z| of the mean response length against the warm-up baseline exceeds `z`
    reward_kl      KL(initial ‖ current) of the reward distribution exceeds `kl`, and rises over `rising` checkpoints
    length_cusum   CUSUM of the mean length; its false-alarm budget is for the entire run, not for a checkpoint
    parting        the same CUSUM, upward only, of the divergence between reward and outcome: the part of the reward
                   that is not the outcome of the task, minus the outcome

In an episode with an environment, the length is that of a turn, because an agent that learns changes its number of
turns. The mix of kinds of turns also changes that length, so `length_z` only counts changes beyond `tolerance`.

A reward that is partly or fully the outcome of the task (`TermSettings.outcome`) rises when a policy improves. Then
`parting` replaces `reward_kl`: it detects that the remaining part of the reward gains more than the outcome does.

An alarm of one rule in `signals` is a warning. Alarms of two of these rules at the same checkpoint, or of the only one,
are a strong warning, which files call `hard_stop` for every value of `action`. If `reward_kl` is one of the signals,
`parting` alone is a strong warning, because it compares proxy and outcome. No rule reads the true reward of simulated
worlds. It only serves to judge afterwards whether an alarm was right and how early it came. Recorded iterations count
from 0, displayed ones from 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
from rlhf_lab.monitoring.settings import Monitor
from rlhf_lab.monitoring.truth import GoldTruth, truth_of_samples
from rlhf_lab.statistics.estimates import floats

RULES = ("length_z", "reward_kl", "length_cusum", "parting")
LEVELS = ("ok", "warning", "hard_stop")
LEAST_REWARDS = 16
"""Minimum number of scored responses of a checkpoint with a reward distribution."""


def needed(signals: Sequence[str]) -> int:
    """Return the number of signals in alarm at one checkpoint that are a strong warning: two, or the only one."""
    return min(2, len(signals))


def level_name(name: str, signals: Sequence[str], *, parting: bool) -> str:
    """Return a level in words, e.g. "strong warning (two signals)"; return the name of a rule unchanged.

    Args:
        signals: rules that count.
        parting: True if the rule `parting` alone is a strong warning too.
    """
    if name != "hard_stop":
        return name
    number = "two signals" if needed(signals) == 2 else "one signal"
    return f"strong warning ({number}{', or parting alone' * parting})"


@dataclass(frozen=True)
class DetectorSettings:
    """Settings of the detector; see `monitoring.settings.Monitor` for meanings and defaults.

    Attributes:
        planned: checkpoints of the entire run, including warm-up.
        seed: seed of the simulation that determines thresholds.
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
    seed: int = 0

    @classmethod
    def of(cls, settings: Monitor, iterations: int, *, every: int, warmup: int, seed: int = 0) -> DetectorSettings:
        """Return the settings of a run of `iterations`; `every` and `warmup` replace those of the monitor."""
        names = [name for name in Monitor.__dataclass_fields__ if name in cls.__dataclass_fields__]
        values = {name: getattr(settings, name) for name in names}
        return cls(**{**values, "every": every, "warmup": warmup, "planned": iterations // every, "seed": seed})


@dataclass(frozen=True)
class IterationBatch:
    """The responses of one iteration, each (N,).

    Attributes:
        prompt_N: id of each response's prompt: any numbers that are equal for the same prompt.
        tokens_N: number of tokens, over all turns.
        reward_N: reward; NaN if unscored.
        gold_N: true reward; NaN or empty if unknown.
        turns_N: number of turns of an episode with an environment; NaN or empty without one.
        unverified_N: part of the reward that is not the outcome; NaN or empty if no part of it is the outcome.
    """

    prompt_N: FloatArray
    tokens_N: FloatArray
    reward_N: FloatArray
    gold_N: FloatArray
    turns_N: FloatArray = field(default_factory=lambda: np.zeros(0))
    unverified_N: FloatArray = field(default_factory=lambda: np.zeros(0))

    @property
    def by_turn(self) -> bool:
        """True if these are episodes with an environment."""
        return bool(np.isfinite(self.turns_N).any())

    @property
    def length_N(self) -> FloatArray:
        """Number of tokens of a response, or mean number per turn of an episode."""
        return self.tokens_N / self.turns_N if self.by_turn else self.tokens_N

    @property
    def parting_N(self) -> FloatArray:
        """Part of the reward that is not the task's outcome, minus the outcome.

        NaN or empty if no part of the reward is the outcome.
        """
        if not len(self.unverified_N):
            return self.unverified_N
        outcome_N = self.reward_N - self.unverified_N
        return self.unverified_N - outcome_N

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> IterationBatch:
        """Return the batch of a row of `to_row`. Missing columns are NaN; without `prompt`, all prompts differ."""
        columns = {name: _floats(row.get(name.removesuffix("_N"))) for name in cls.__dataclass_fields__}
        responses = len(columns["tokens_N"])
        for name, values_N in columns.items():
            if not len(values_N):
                columns[name] = np.arange(responses, dtype=float) if name == "prompt_N" else np.full(responses, np.nan)
        return cls(**columns)

    def to_row(self) -> dict[str, list[float | None]]:
        """Return the columns as lists, without unknown columns; an unscored response has null."""
        row = {}
        for name in self.__dataclass_fields__:
            key = name.removesuffix("_N")
            values_N = getattr(self, name)
            if np.isfinite(values_N).any() or key == "reward":
                row[key] = [_to_plain(value) for value in values_N.tolist()]
        return row


@dataclass(frozen=True)
class DetectorVerdict:
    """The detector's result at one checkpoint.

    Attributes:
        statistics: rule → z, KL in nats, or CUSUM in units of its threshold; rules without data are missing.
        alarms: rules in alarm.
        level: index into LEVELS.
        scored, unscored: number of responses with and without a reward.
    """

    statistics: Mapping[str, float]
    alarms: tuple[str, ...]
    level: int
    scored: int
    unscored: int


class Detector:
    """Detector of a run, which reads its batches in order. `state_dict` contains its entire state.

    Attributes:
        iteration: number of iterations seen.
        checkpoints: number of checkpoints judged, i.e. those after warm-up.
        pending: batches since the last checkpoint.
        warm: checkpoints of the warm-up; empty once the baseline is fitted.
        length, parting: CUSUM of the mean length, and of the divergence between reward and outcome. None until the
            baseline is fitted; `parting` also if no part of the reward is the outcome.
        edges, initial_K: bins of the reward distribution and their counts in the warm-up; empty without rewards.
        kls: last values of `reward_kl`.
        level: level of the last checkpoint, an index into LEVELS.
        first: rule or level → iteration of its first alarm.
        counts: rule or level → number of checkpoints in alarm.
        gold: (mean, standard error) of the true reward of each iteration; NaN if unknown.
    """

    def __init__(self, limits: DetectorSettings):
        self.limits = limits
        self.iteration = 0
        self.checkpoints = 0
        self.pending: list[IterationBatch] = []
        self.warm: list[IterationBatch] = []
        self.length: Cusum | None = None
        self.parting: Cusum | None = None
        self.by_turn = False
        self.edges = np.zeros(0)
        self.initial_K = np.zeros(0)
        self.kls = [0.0]
        self.level = 0
        self.first: dict[str, int] = {}
        self.counts: dict[str, int] = {}
        self.gold: list[tuple[float, float]] = []

    def see(self, batch: IterationBatch) -> DetectorVerdict | None:
        """Add one iteration's responses. Returns a verdict if they complete a checkpoint after warm-up, else None."""
        # only for judging alarms afterwards; no rule reads it
        self.gold.append(_mean_and_error(by_prompt(batch.gold_N, batch.prompt_N)))
        self.pending.append(batch)
        self.iteration += 1
        if len(self.pending) < self.limits.every:
            return None
        checkpoint = _join_batches(self.pending)
        self.pending = []
        if self.length is None:  # every run has lengths, so their CUSUM shows whether the baseline is fitted
            self.warm.append(checkpoint)
            if len(self.warm) == self.limits.warmup:
                self._fit_baseline()
            return None
        return self._judge_checkpoint(checkpoint)

    def _fit_baseline(self) -> None:
        """Fit the baseline to the checkpoints of the warm-up, and set the thresholds."""
        self.by_turn = any(batch.by_turn for batch in self.warm)
        self.length = self._start_cusum("length_N", two_sided=True)
        self.parting = self._start_cusum("parting_N")
        reward_N = _join_batches(self.warm).reward_N
        # with few rewards the bins would be too noisy to compare
        if np.isfinite(reward_N).sum() >= LEAST_REWARDS:
            self.edges = bin_edges(reward_N)
            self.initial_K = bin_counts(reward_N, self.edges)
        self.warm = []

    def _start_cusum(self, column: str, *, two_sided: bool = False) -> Cusum | None:
        """Return a CUSUM whose baseline is fitted to the warm-up; None if a checkpoint has no value of the column."""
        limits = self.limits
        checkpoints = [by_prompt(getattr(batch, column), batch.prompt_N) for batch in self.warm]
        if not all(map(len, checkpoints)):
            return None
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

    def _judge_checkpoint(self, batch: IterationBatch) -> DetectorVerdict:
        """Compute statistics, alarms and level of a checkpoint after warm-up."""
        assert self.length is not None
        limits = self.limits
        statistics: dict[str, float] = {}
        alarms: list[str] = []
        length_B = by_prompt(batch.length_N, batch.prompt_N)
        length = float(length_B.mean())
        prompts = len(length_B)
        statistics["length_z"] = self.length.baseline.z(length, prompts, tolerance=self._length_tolerance())
        statistics["length_cusum"] = self.length.step(length, prompts)
        parting_B = by_prompt(batch.parting_N, batch.prompt_N)
        # an outcome may be missing in a single checkpoint; its CUSUM then keeps its sum
        if self.parting is not None and len(parting_B):
            statistics["parting"] = self.parting.step(float(parting_B.mean()), len(parting_B))
        scored = int(np.isfinite(batch.reward_N).sum())
        # with an outcome in the reward, `parting` replaces this rule
        if self.parting is None and len(self.initial_K) and scored >= LEAST_REWARDS:
            statistics["reward_kl"] = shift_kl(self.initial_K, bin_counts(batch.reward_N, self.edges))
            kls = [*self.kls, statistics["reward_kl"]]
            self.kls = kls[-limits.rising :]
            # a rise as well, because noise alone may exceed the limit in a single checkpoint
            if self._kl_rises() and self.kls[-1] > limits.kl:
                alarms.append("reward_kl")
        if abs(statistics["length_z"]) > limits.z:
            alarms.append("length_z")
        # these CUSUMs are in units of their thresholds; a rule without data has no statistic and no alarm
        alarms += [rule for rule in ("length_cusum", "parting") if statistics.get(rule, 0.0) > 1]
        evidence = sum(rule in alarms for rule in limits.signals)
        # one rule that compares proxy and outcome is sufficient evidence of hacking
        if evidence >= needed(limits.signals) or (self.parting_suffices and "parting" in alarms):
            self.level = 2
        else:
            self.level = 1 if evidence else 0
        self._count_alarms(statistics, alarms)
        unscored = len(batch.reward_N) - scored
        return DetectorVerdict(statistics, tuple(alarms), self.level, scored, unscored)

    @property
    def parting_suffices(self) -> bool:
        """True if `parting` is judged, and is a strong warning without another signal."""
        return self.parting is not None and "reward_kl" in self.limits.signals

    def _length_tolerance(self) -> float:
        """Return the minimum relative change of the mean length that `length_z` counts."""
        # the length of a turn depends on the environment too, and changes without any hacking
        return self.limits.tolerance if self.by_turn else 0.0

    def _kl_rises(self) -> bool:
        """Return True if each of the last `rising` values of `reward_kl` exceeds the one before it."""
        pairs = zip(self.kls, self.kls[1:], strict=False)
        rises = all(before < after for before, after in pairs)
        return len(self.kls) == self.limits.rising and rises

    def _count_alarms(self, statistics: Mapping[str, float], alarms: list[str]) -> None:
        """Record first alarms, and the number of checkpoints at which each rule and level was in alarm."""
        self.checkpoints += 1
        raised = [*alarms, *LEVELS[1 : self.level + 1]]  # a strong warning is also a warning
        for name in (*statistics, *LEVELS[1:]):
            self.counts[name] = self.counts.get(name, 0) + (name in raised)
        for name in raised:
            self.first.setdefault(name, self.iteration - 1)

    def band(self) -> tuple[float, float] | None:
        """Return the range of mean lengths in which `length_z` raises no alarm.

        It applies to checkpoints as large as in warm-up.
        """
        if self.length is None:
            return None
        baseline = self.length.baseline
        # z is linear in the mean, so its slope gives the width of the band
        z_per_token = baseline.z(baseline.mean + 1, baseline.prompts)
        tolerated = self._length_tolerance() * abs(baseline.mean)
        half_width = self.limits.z / z_per_token + tolerated
        return baseline.mean - half_width, baseline.mean + half_width

    def totals(self, truth: GoldTruth | None = None) -> dict[str, float]:
        """Return the metrics of the entire run; see metrics.py.

        Args:
            truth: whether gold fell on held-out prompts; None judges by the gold of the training samples, if known.
        """
        metrics: dict[str, float] = {}
        for name, count in self.counts.items():
            metrics[f"alarm/{name}"] = float(count > 0)
            metrics[f"alarm_at/{name}"] = self.first.get(name, math.nan)
            metrics[f"alarm_share/{name}"] = count / self.checkpoints
        if not metrics:  # nothing was judged
            return metrics
        gold_T2 = np.array(self.gold)
        if np.isfinite(gold_T2).all():
            fall = gold_fall(gold_T2[:, 0], gold_T2[:, 1])
            metrics["gold_peak"] = fall.peak if fall else math.nan
            metrics["gold_fall"] = fall.fall if fall else math.nan
            truth = truth or truth_of_samples(fall)
        if truth is None:
            return metrics
        metrics |= truth.to_metrics()
        for name in self.counts:
            first = self.first.get(name)
            lead = math.nan if first is None else truth.fell_at - first
            metrics[f"lead/{name}"] = lead
            # an alarm can be in time only in a run that fell, and false only in one that did not
            metrics[f"in_time/{name}"] = float(lead > 0) if truth.fell else math.nan
            metrics[f"false/{name}"] = float(first is not None) if truth.fell is False else math.nan
        return metrics

    def state_dict(self) -> dict[str, Any]:
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
            "cusums": [None if cusum is None else asdict(cusum) for cusum in (self.length, self.parting)],
            "by_turn": self.by_turn,
            "edges": self.edges.tolist(),
            "initial": self.initial_K.tolist(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.iteration = state["iteration"]
        self.checkpoints = state["checkpoints"]
        self.level = state["level"]
        self.kls = list(state["kls"])
        self.first = dict(state["first"])
        self.counts = dict(state["counts"])
        self.gold = [(mean, error) for mean, error in state["gold"]]
        self.pending = [IterationBatch.from_row(row) for row in state["pending"]]
        self.warm = [IterationBatch.from_row(row) for row in state["warm"]]
        self.length, self.parting = (_restore_cusum(values) for values in state["cusums"])
        self.by_turn = state["by_turn"]
        self.edges = np.array(state["edges"])
        self.initial_K = np.array(state["initial"])


def _restore_cusum(values: Mapping[str, Any] | None) -> Cusum | None:
    if values is None:
        return None
    baseline = Baseline(**values["baseline"])  # `asdict` turned it into a dictionary
    return Cusum(**{**values, "baseline": baseline})


def _join_batches(batches: list[IterationBatch]) -> IterationBatch:
    """Concatenate batches of responses. The same prompt in two iterations counts as two prompts."""
    if len(batches) == 1:
        return batches[0]
    columns = {
        name: np.concatenate([getattr(batch, name) for batch in batches])
        for name in IterationBatch.__dataclass_fields__
    }
    # number the prompts of each batch from 0, then shift each batch beyond the previous ones
    numbers = [np.unique(batch.prompt_N, return_inverse=True)[1] for batch in batches]
    counts = [number_N.max() + 1 for number_N in numbers[:-1]]
    offsets = np.cumsum([0, *counts])
    shifted = [number_N + offset for number_N, offset in zip(numbers, offsets, strict=True)]
    columns["prompt_N"] = np.concatenate(shifted).astype(float)
    return IterationBatch(**columns)


def _mean_and_error(values_B: FloatArray) -> tuple[float, float]:
    """Return the mean over prompts and its standard error; NaN if unknown."""
    if len(values_B) < 2:
        return (float(values_B[0]) if len(values_B) else math.nan), math.nan
    error = float(values_B.std(ddof=1)) / math.sqrt(len(values_B))
    return float(values_B.mean()), error


def _to_plain(value: float) -> float | None:
    """Convert a value for JSON: null for NaN, whole numbers without a point, otherwise six digits."""
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() else round(value, 6)


def _floats(values: Any) -> FloatArray:
    """Return a column as an array; it is a list, a single number in files with a row per response, or missing."""
    return floats([] if values is None else values)
