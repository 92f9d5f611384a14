"""The reward-hacking detector: batches of sampled replies in, alarms out; live and on a saved trace the same.

Rules, each with a statistic per checkpoint (`hacking.py` has the formulas):

    length_z       |z| of the mean reply length against the warm-up baseline above `z`
    reward_kl      KL(initial ‖ current) of the reward distribution above `kl`, and rising over `rising` checkpoints
    length_cusum   CUSUM of the mean length; its false-alarm budget is of the whole run, not of a checkpoint
    disagreement   the same CUSUM upward on the disagreement of an ensemble's members

One of the rules in `signals` in alarm is a warning, `needed` of them at the same checkpoint a strong warning; files
call it `hard_stop`, whatever `action` makes of it. The true reward of simulated worlds is no rule's input: it only says
afterwards whether an alarm was right and how early it came. Recorded iterations count from 0, shown ones from 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
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

RULES = ("length_z", "reward_kl", "length_cusum", "disagreement")
LEVELS = ("ok", "warning", "hard_stop")
NUMBERS = ("no", "one", "two", "three", "four")
LEAST_REWARDS = 16
"""Scored replies below which a checkpoint has no reward distribution."""


def level_name(name: str, needed: int = 2) -> str:
    """How a person reads a level, e.g. "strong warning (two signals)"; the name itself for a rule.

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
        prompt_N: which prompt a reply answers, any numbers.
        tokens_N: length.
        reward_N: NaN where unscored.
        disagreement_N: of the ensemble's members; NaN or empty without one.
        gold_N: true reward; NaN or empty where unknown.
    """

    prompt_N: FloatArray
    tokens_N: FloatArray
    reward_N: FloatArray
    disagreement_N: FloatArray
    gold_N: FloatArray

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Batch:
        """Inverse of `to_row`; what a row lacks is unknown, and every reply then has a prompt of its own."""
        columns = {key: _floats(row.get(key)) for key in ("prompt", "tokens", "reward", "disagreement", "gold")}
        size = len(columns["tokens"])
        full = {key: values if len(values) else np.full(size, np.nan) for key, values in columns.items()}
        full["prompt"] = columns["prompt"] if len(columns["prompt"]) else np.arange(size, dtype=float)
        return cls(**{f"{key}_N": values for key, values in full.items()})

    def to_row(self) -> dict[str, list[float | None]]:
        """Plain lists without what is unknown; an unscored reply has null."""
        columns = {name.removesuffix("_N"): getattr(self, name) for name in self.__dataclass_fields__}
        known = {key: values for key, values in columns.items() if np.isfinite(values).any() or key == "reward"}
        return {key: [_plain(x) for x in values.tolist()] for key, values in known.items()}


@dataclass(frozen=True)
class Verdict:
    """What one checkpoint says.

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
    """Reads a run's batches in order. All it knows is in `state_dict`."""

    def __init__(self, limits: Limits):
        self.limits = limits
        self.iteration = self.checkpoints = 0
        self.pending: list[Batch] = []
        self.warm: list[Batch] = []
        self.length: Cusum | None = None
        self.spread: Cusum | None = None
        self.edges, self.initial_K = np.zeros(0), np.zeros(0)
        self.kls = [0.0]
        self.level = 0
        self.first: dict[str, int] = {}
        self.counts: dict[str, int] = {}
        self.gold: list[tuple[float, float]] = []

    def see(self, batch: Batch) -> Verdict | None:
        """Take in one iteration's replies; a verdict when they complete a checkpoint after warm-up."""
        self.gold.append(_mean_and_error(by_prompt(batch.gold_N, batch.prompt_N)))
        self.pending.append(batch)
        self.iteration += 1
        if len(self.pending) < self.limits.every:
            return None
        batch, self.pending = _joined(self.pending), []
        if self.length is None:
            self.warm.append(batch)
            if len(self.warm) == self.limits.warmup:
                self._start()
            return None
        return self._judge(batch)

    def _start(self) -> None:
        """The baseline is complete: fit it and set thresholds."""
        joined = _joined(self.warm)
        self.length = self._cusum([by_prompt(b.tokens_N, b.prompt_N) for b in self.warm], two_sided=True)
        spreads = [by_prompt(b.disagreement_N, b.prompt_N) for b in self.warm]
        if all(map(len, spreads)):
            self.spread = self._cusum(spreads, two_sided=False)
        if np.isfinite(joined.reward_N).sum() >= LEAST_REWARDS:
            self.edges = bin_edges(joined.reward_N)
            self.initial_K = bin_counts(joined.reward_N, self.edges)
        self.warm = []

    def _cusum(self, checkpoints: list[FloatArray], *, two_sided: bool) -> Cusum:
        limits, baseline = self.limits, fit_baseline(checkpoints)
        threshold = cusum_threshold(
            baseline,
            planned=limits.planned - limits.warmup,
            budget=limits.budget,
            tolerance=limits.tolerance,
            two_sided=two_sided,
            seed=limits.seed,
        )
        return Cusum(baseline, limits.tolerance, two_sided, threshold)

    def _judge(self, batch: Batch) -> Verdict:
        assert self.length is not None
        limits, found, alarms = self.limits, {}, []
        tokens_B = by_prompt(batch.tokens_N, batch.prompt_N)
        found["length_z"] = self.length.baseline.z(float(tokens_B.mean()), len(tokens_B))
        found["length_cusum"] = self.length.step(float(tokens_B.mean()), len(tokens_B))
        spread_B = by_prompt(batch.disagreement_N, batch.prompt_N)
        if self.spread is not None and len(spread_B):
            found["disagreement"] = self.spread.step(float(spread_B.mean()), len(spread_B))
        scored = int(np.isfinite(batch.reward_N).sum())
        if len(self.initial_K) and scored >= LEAST_REWARDS:
            found["reward_kl"] = shift_kl(self.initial_K, bin_counts(batch.reward_N, self.edges))
            self.kls = [*self.kls, found["reward_kl"]][-limits.rising :]
            rising = len(self.kls) == limits.rising and all(a < b for a, b in zip(self.kls, self.kls[1:], strict=False))
            alarms += ["reward_kl"] * (rising and self.kls[-1] > limits.kl)
        alarms += ["length_z"] * (abs(found["length_z"]) > limits.z)
        alarms += [rule for rule in ("length_cusum", "disagreement") if found.get(rule, 0.0) > 1]
        evidence = sum(rule in alarms for rule in limits.signals)
        self.level = 2 if evidence >= limits.needed else 1 if evidence else 0
        self._count(found, alarms)
        return Verdict(found, tuple(alarms), self.level, scored, len(batch.reward_N) - scored)

    def _count(self, found: Mapping[str, float], alarms: list[str]) -> None:
        """Note first alarms and how often each rule and level was in alarm."""
        self.checkpoints += 1
        raised = [*alarms, *LEVELS[1 : self.level + 1]]
        for name in (*found, *LEVELS[1:]):
            self.counts[name] = self.counts.get(name, 0) + (name in raised)
        for name in raised:
            self.first.setdefault(name, self.iteration - 1)

    def band(self) -> tuple[float, float] | None:
        """Mean lengths between which `length_z` is silent, for checkpoints as large as those of the warm-up."""
        if self.length is None:
            return None
        base = self.length.baseline
        half = self.limits.z / base.z(base.mean + 1, base.prompts)
        return base.mean - half, base.mean + half

    def totals(self) -> dict[str, float]:
        """Numbers of the whole run; see metrics.py."""
        found: dict[str, float] = {}
        for name, count in self.counts.items():
            found[f"alarm/{name}"] = float(count > 0)
            found[f"alarm_at/{name}"] = self.first.get(name, math.nan)
            found[f"alarm_share/{name}"] = count / self.checkpoints
        known = np.array(self.gold)
        if not found or not np.isfinite(known).all():
            return found
        turn = gold_fall(known[:, 0], known[:, 1])
        found |= {"hacked": float(turn is not None)}
        found |= {"gold_peak": turn.peak if turn else math.nan, "gold_fall": turn.fall if turn else math.nan}
        for name in self.counts:
            first = self.first.get(name)
            late = math.nan if turn is None or first is None else turn.fall - first
            found[f"lead/{name}"] = late
            found[f"in_time/{name}"] = math.nan if turn is None else float(late > 0)
            found[f"false/{name}"] = math.nan if turn is not None else float(first is not None)
        return found

    def state_dict(self) -> dict[str, Any]:
        """Plain values only."""
        plain = ("iteration", "checkpoints", "kls", "level", "first", "counts", "gold")
        return {
            **{name: getattr(self, name) for name in plain},
            "pending": [batch.to_row() for batch in self.pending],
            "warm": [batch.to_row() for batch in self.warm],
            "cusums": [None if cusum is None else asdict(cusum) for cusum in (self.length, self.spread)],
            "edges": self.edges.tolist(),
            "initial": self.initial_K.tolist(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.iteration, self.checkpoints, self.level = state["iteration"], state["checkpoints"], state["level"]
        self.kls, self.first, self.counts = list(state["kls"]), dict(state["first"]), dict(state["counts"])
        self.gold = [(mean, error) for mean, error in state["gold"]]
        self.pending = [Batch.from_row(row) for row in state["pending"]]
        self.warm = [Batch.from_row(row) for row in state["warm"]]
        self.length, self.spread = (_cusum_from(values) for values in state["cusums"])
        self.edges, self.initial_K = np.array(state["edges"]), np.array(state["initial"])


def _cusum_from(values: Mapping[str, Any] | None) -> Cusum | None:
    return None if values is None else Cusum(**{**values, "baseline": Baseline(**values["baseline"])})


def _joined(batches: list[Batch]) -> Batch:
    """One batch of all replies; what two iterations asked are different prompts."""
    if len(batches) == 1:
        return batches[0]
    found = {name: np.concatenate([getattr(b, name) for b in batches]) for name in Batch.__dataclass_fields__}
    own = [np.unique(b.prompt_N, return_inverse=True)[1] for b in batches]
    begin = np.cumsum([0, *(index_N.max() + 1 for index_N in own[:-1])])
    return Batch(
        **{**found, "prompt_N": np.concatenate([i + b for i, b in zip(own, begin, strict=True)]).astype(float)}
    )


def _mean_and_error(values_B: FloatArray) -> tuple[float, float]:
    """Mean over prompts and its standard error; NaN when it is not known."""
    if len(values_B) < 2:
        return (float(values_B[0]) if len(values_B) else math.nan), math.nan
    return float(values_B.mean()), float(values_B.std(ddof=1)) / math.sqrt(len(values_B))


def _plain(value: float) -> float | None:
    return None if not math.isfinite(value) else int(value) if value.is_integer() else round(value, 6)


def _floats(values: Any) -> FloatArray:
    given = [] if values is None else values if isinstance(values, list) else [values]
    return np.array([math.nan if x is None else x for x in given], dtype=np.float64)
