"""Combination of stored term values into the reward of a response: pure array functions that call no model.

A live run and an offline re-scoring both call these functions. Every operation is elementwise, so that the reward of a
response does not depend on the other responses of its batch, to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rlhf_lab.core.types import FloatArray
from rlhf_lab.rewards.settings import RewardGraph

Parts = Mapping[str, FloatArray]
"""Node → its value for each response, (N,); NaN means unscored."""

CONFIDENCE = "confidence"
"""Key in `Parts` of the confidence that a response states; the value is NaN if it states none."""
BASELINE = "confidence/baseline"
"""Key in `Parts` of the mean reward with which the stated confidence was compared."""
SCALES_FILE = "reward_terms.json"
"""File of the run directory with mean, sd and n of the terms that were standardised on the corpus."""


def combine(parts: Parts, settings: RewardGraph) -> FloatArray:
    return calibrate(aggregate(parts, settings), parts, settings)


def aggregate(parts: Parts, settings: RewardGraph) -> FloatArray:
    return _gated(_combined_terms(parts, settings), parts, settings)


def _gated(total_N: FloatArray, parts: Parts, settings: RewardGraph) -> FloatArray:
    """Return the value if every gate passes the response, else the gate's replacement value, (N,)."""
    for name, gate in settings.gates.items():
        gate_N = parts[name]
        total_N = np.where(gate_N < gate.floor, gate.below, total_N)
        total_N = np.where(np.isnan(gate_N), np.nan, total_N)  # a response that the gate cannot score did not pass it
    return total_N


def _combined_terms(parts: Parts, settings: RewardGraph) -> FloatArray:
    # Skip a term of weight 0 instead of multiplying: if it abstains, 0 · NaN would make the response unscored.
    weighting = {name: weight for name, weight in settings.weighting.items() if weight}
    weighted = [weight * term_value(parts[name], settings.terms[name]) for name, weight in weighting.items()]
    # Start with the first term instead of the int 0, so that the sum is always an array.
    return sum(weighted[1:], start=weighted[0])


def term_value(values_N: FloatArray, term: Any) -> FloatArray:
    """Return a term's values standardised and transformed, (N,). `with_scales` has replaced `standardise=corpus`."""
    values_N = np.ascontiguousarray(values_N, dtype=np.float64)
    if term.standardise == "fixed":
        values_N = (values_N - term.mean) / term.sd
    if term.transform == "sigmoid":
        with np.errstate(over="ignore"):  # exp overflows to ∞ for very low values, and the sigmoid is then 0
            return 1 / (1 + np.exp(-values_N))
    return values_N


def bounded(total_N: FloatArray, settings: RewardGraph) -> FloatArray:
    """Divide by the temperature and apply the smooth ceiling, (N,)."""
    total_N = total_N / settings.temperature
    if not settings.max_confidence:
        return total_N
    # Two rewards differ by at most 2 · ceiling. The sigmoid of that difference must equal `max_confidence`.
    ceiling = math.log(settings.max_confidence / (1 - settings.max_confidence)) / 2
    return ceiling * np.tanh(total_N / ceiling)


def calibrate(total_N: FloatArray, parts: Parts, settings: RewardGraph) -> FloatArray:
    """Apply temperature, smooth ceiling and stated confidence, (N,)."""
    total_N = bounded(total_N, settings)
    if settings.confidence_weight:
        stated_N = np.asarray(parts[CONFIDENCE], dtype=np.float64)
        baseline_N = np.asarray(parts[BASELINE], dtype=np.float64)
        # PPO-C (arXiv:2410.09724): a response that is better than the baseline gains by stating a high confidence.
        change_N = settings.confidence_weight * (total_N - baseline_N) * (stated_N - 0.5)
        total_N = np.where(np.isnan(stated_N), total_N, total_N + change_N)
    return total_N


def unverified(reward_N: FloatArray, parts: Parts, settings: RewardGraph) -> FloatArray | None:
    """Return the component of the rewards that does not come from the outcome of the task, (N,); NaN if unscored.

    Return None if no term is the outcome, or if the reward is not a sum of its terms. The component is the sum of the
    other terms: subtracting the outcome from the total would leave rounding errors.
    """
    others = [name for name in nodes(settings) if name not in settings.terms or not settings.terms[name].outcome]
    if not others:
        return np.where(np.isfinite(reward_N), 0.0, np.nan)
    if settings.calibrates or len(others) == len(nodes(settings)):
        return None
    rest_N = np.zeros(len(reward_N))
    for name in others:
        if weight := settings.weighting[name]:
            rest_N = rest_N + weight * term_value(parts[name], settings.terms[name])
    return np.where(np.isfinite(reward_N), _gated(rest_N, parts, settings), np.nan)


def nodes(settings: RewardGraph) -> list[str]:
    """Return the names in `parts` that `combine` reads."""
    # A gate is read even if its weight is 0.
    names = [name for name, weight in settings.weighting.items() if weight or name in settings.gates]
    return [*names, CONFIDENCE, BASELINE] if settings.confidence_weight else names


def with_scales(settings: RewardGraph, scales: Mapping[str, Mapping[str, float]]) -> RewardGraph:
    """Return the graph with `standardise=corpus` replaced by `fixed` with the measured mean and sd."""
    terms = dict(settings.terms)
    for name, term in settings.terms.items():
        if term.standardise == "corpus":
            terms[name] = replace(term, standardise="fixed", mean=scales[name]["mean"], sd=scales[name]["sd"])
    return replace(settings, terms=terms)
