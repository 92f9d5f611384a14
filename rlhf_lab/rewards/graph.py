"""The reward graph: terms are scored, transformed, aggregated, calibrated and clipped; every node's value is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlhf_lab import registry
from rlhf_lab.rewards.checked import CheckedReward
from rlhf_lab.sections import RewardGraph
from rlhf_lab.train.run import Run
from rlhf_lab.types import FloatArray, Reward, RewardBatch

METRICS = {
    "reward/<term>": "value of a term of the reward graph, before transform and weight",
    "reward/<term>/<part>": "a part of the term that it names itself, such as a member of an ensemble",
}


class GraphReward:
    """Scores replies with all terms of a graph.

    Args:
        terms: name → checked term.
        settings: how they are combined.
    """

    def __init__(self, terms: Mapping[str, CheckedReward], settings: RewardGraph):
        self.terms, self.settings = terms, settings

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        """`parts` holds every term's value, and its own parts as "term/part"."""
        parts: dict[str, FloatArray] = {}
        for name, term in self.terms.items():
            batch = term(prompts, responses)
            parts[name] = batch.total_N
            own = {part: values for part, values in batch.parts.items() if part != name}
            parts |= {f"{name}/{part}": np.asarray(values, dtype=np.float64) for part, values in own.items()}
        return RewardBatch(combine(parts, self.settings), parts)


def combine(parts: Mapping[str, FloatArray], settings: RewardGraph) -> FloatArray:
    """The reward of N replies from the values of the terms, (N,). Calls no model: saved values can be scored again."""
    values_KN = np.stack([_transformed(parts[name], term) for name, term in settings.terms.items()])
    weight_K = np.array([term.weight for term in settings.terms.values()])
    if settings.aggregate == "worst":
        total_N = values_KN.min(axis=0)
    else:
        total_N = weight_K @ values_KN
        total_N = total_N / weight_K.sum() if settings.aggregate == "mean" else total_N
    total_N = total_N / settings.temperature
    if settings.ceiling:
        total_N = settings.ceiling * np.tanh(total_N / settings.ceiling)
    return np.clip(total_N, -settings.clip, settings.clip) if settings.clip else total_N


def _transformed(values_N: FloatArray, term: Any) -> FloatArray:
    values_N = np.asarray(values_N, dtype=np.float64)
    return 1 / (1 + np.exp(-values_N)) if term.transform == "sigmoid" else values_N


def build_graph(settings: RewardGraph, run: Run) -> CheckedReward:
    """The reward of a run, each term checked and then their sum."""
    terms = {name: _term(name, term, run) for name, term in settings.terms.items()}
    return CheckedReward("+".join(terms), GraphReward(terms, settings))


def _term(name: str, settings: Any, run: Run) -> CheckedReward:
    reward: Reward = registry.build("reward", settings, run)
    return CheckedReward(name, reward, on_error=settings.on_error, timeout_s=settings.timeout_s, note=run.note)
