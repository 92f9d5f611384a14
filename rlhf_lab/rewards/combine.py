"""The reward of a reply from the saved values of its terms: pure functions on arrays that call no model.

A live run and an offline re-scoring both call these functions. Every operation is elementwise, so that a reply's reward
does not depend on the replies it is scored with, to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rlhf_lab.core.types import FloatArray
from rlhf_lab.rewards.learned.ensemble import combine_members
from rlhf_lab.rewards.settings import RewardGraph

Parts = Mapping[str, FloatArray]
"""Node → its value for each reply, (N,); NaN is unscored."""

CONFIDENCE = "confidence"
"""The confidence that a reply states, NaN for none."""
BASELINE = "confidence/baseline"
"""The mean reward that the stated confidence was held against."""
SCALES_FILE = "reward_terms.json"
"""In the run directory: mean, sd and n of the terms that were standardised on the corpus."""


def combine(parts: Parts, settings: RewardGraph) -> FloatArray:
    """The reward of N replies, (N,)."""
    return calibrate(aggregate(parts, settings), parts, settings)


def aggregate(parts: Parts, settings: RewardGraph) -> FloatArray:
    """The terms combined into one value, before calibration, (N,)."""
    return _gated(_combined_terms(parts, settings), parts, settings)


def _gated(total_N: FloatArray, parts: Parts, settings: RewardGraph) -> FloatArray:
    """The same where every gate lets a reply pass, else what the gate gives in its place, (N,)."""
    for name, gate in settings.gates.items():
        gate_N = parts[name]
        total_N = np.where(gate_N < gate.floor, gate.below, total_N)
        total_N = np.where(np.isnan(gate_N), np.nan, total_N)  # what the gate leaves unscored has not passed it
    return total_N


def _combined_terms(parts: Parts, settings: RewardGraph) -> FloatArray:
    """The terms combined, whatever the gates say, (N,)."""
    if settings.aggregate in ("worst", "uwo"):
        values_KN = np.stack([term_value(parts[name], term) for name, term in settings.terms.items()])
        return combine_members(
            values_KN,
            settings.aggregate,
            penalty_weight=settings.penalty_weight,
            penalty=settings.penalty,
            ddof=settings.ddof,
        )
    # A term of weight 0 is left out rather than multiplied: where it abstains, 0 · NaN would unscore the reply.
    weighting = {name: weight for name, weight in settings.weighting.items() if weight}
    weighted = [weight * term_value(parts[name], settings.terms[name]) for name, weight in weighting.items()]
    total_N = sum(weighted[1:], start=weighted[0])
    if settings.aggregate == "mean":
        return total_N / sum(weighting.values())
    return total_N


def term_value(values_N: FloatArray, term: Any) -> FloatArray:
    """A term's values standardised and transformed, (N,). `with_scales` turned `standardise=corpus` into `fixed`."""
    values_N = np.ascontiguousarray(values_N, dtype=np.float64)
    if term.standardise == "fixed":
        values_N = (values_N - term.mean) / term.sd
    if term.transform == "sigmoid":
        with np.errstate(over="ignore"):  # exp overflows to ∞ for very low values, and the sigmoid is then 0
            return 1 / (1 + np.exp(-values_N))
    return values_N


def bounded(total_N: FloatArray, settings: RewardGraph) -> FloatArray:
    """Temperature and smooth ceiling, (N,)."""
    total_N = total_N / settings.temperature
    ceiling = settings.ceiling
    if settings.max_confidence:
        # Two replies differ by at most 2 · ceiling: σ of that is the confidence that may not be exceeded.
        ceiling = math.log(settings.max_confidence / (1 - settings.max_confidence)) / 2
    return ceiling * np.tanh(total_N / ceiling) if ceiling else total_N


def calibrate(total_N: FloatArray, parts: Parts, settings: RewardGraph) -> FloatArray:
    """Temperature, smooth ceiling, stated confidence, clip, (N,)."""
    total_N = bounded(total_N, settings)
    if settings.confidence_weight:
        stated_N = np.asarray(parts[CONFIDENCE], dtype=np.float64)
        baseline_N = np.asarray(parts[BASELINE], dtype=np.float64)
        change_N = settings.confidence_weight * (total_N - baseline_N) * (stated_N - 0.5)
        total_N = np.where(np.isnan(stated_N), total_N, total_N + change_N)
    return np.clip(total_N, -settings.clip, settings.clip) if settings.clip else total_N


def unverified(reward_N: FloatArray, parts: Parts, settings: RewardGraph) -> FloatArray | None:
    """The part of the rewards that is not the outcome of the task, (N,); NaN where unscored.

    None where no term is the outcome, and where the reward is no sum of its terms. It is summed from the other terms:
    what a subtraction leaves of equal values differs in the last bits.
    """
    others = [name for name in nodes(settings) if name not in settings.terms or not settings.terms[name].outcome]
    if not others:
        return np.where(np.isfinite(reward_N), 0.0, np.nan)
    sums = settings.aggregate in ("weighted_sum", "mean") and not settings.calibrates
    if not sums or len(others) == len(nodes(settings)):
        return None
    weighting = {name: weight for name, weight in settings.weighting.items() if weight}
    total_weight = sum(weighting.values()) if settings.aggregate == "mean" else 1.0
    rest_N = np.zeros(len(reward_N))
    for name in others:
        if name in weighting:
            rest_N = rest_N + weighting[name] * term_value(parts[name], settings.terms[name]) / total_weight
    return np.where(np.isfinite(reward_N), _gated(rest_N, parts, settings), np.nan)


def nodes(settings: RewardGraph) -> list[str]:
    """Names in `parts` that `combine` reads."""
    reads_weights = settings.aggregate in ("weighted_sum", "mean")
    gates = settings.gates
    names = [name for name, weight in settings.weighting.items() if weight or not reads_weights or name in gates]
    if settings.confidence_weight:
        names += [CONFIDENCE, BASELINE]
    return names


def with_scales(settings: RewardGraph, scales: Mapping[str, Mapping[str, float]]) -> RewardGraph:
    """The graph with `standardise=corpus` replaced by `fixed` with the measured mean and sd."""
    terms = dict(settings.terms)
    for name, term in settings.terms.items():
        if term.standardise == "corpus":
            terms[name] = replace(term, standardise="fixed", mean=scales[name]["mean"], sd=scales[name]["sd"])
    return replace(settings, terms=terms)
