"""A program that checks a reply against its row, and the reward that it makes.

A verifier reads the facts of a row (answer, tests, instructions, schema), the prompt and the reply. The reward of a run
(`VerifierReward`) and its metric `correct` (`oracle.py`) ask the same object, so that they cannot disagree. The module
of a kind has `make(settings)`, which returns the verifier, and `build(settings, run)`, which returns it as a reward.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

import numpy as np

from rlhf_lab.config import registry
from rlhf_lab.core.arrays import FloatArray
from rlhf_lab.core.episodes import Episode
from rlhf_lab.core.types import RewardBatch
from rlhf_lab.rewards.term import TermSettings

Reply = tuple[Mapping[str, Any], str, str]
"""Facts of the row, prompt, response."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier says of a reply.

    Attributes:
        score: 1 for a reply that does all that was asked, 0 for one that does nothing of it, else a share; NaN where
            the row lacks what the check needs, or nobody can tell.
        parts: name → a value beside the score, such as the same under a looser reading; NaN where it is unknown.
    """

    score: float
    parts: Mapping[str, float] = field(default_factory=dict)


class Verifier(Protocol):
    """Checks replies. The same arguments always give the same score."""

    def score(self, facts: Mapping[str, Any], prompt: str, response: str) -> float:
        """0…1, see `Verdict.score`.

        Args:
            facts: the columns of the prompt's row that are not text of the conversation; `answer` among them.
            prompt: a transcript that ends where the reply starts.
        """
        ...


@runtime_checkable
class DetailedVerifier(Protocol):
    """A verifier that also says what its score is made of."""

    def score(self, facts: Mapping[str, Any], prompt: str, response: str) -> float: ...

    def verdict(self, facts: Mapping[str, Any], prompt: str, response: str) -> Verdict: ...


@runtime_checkable
class BatchVerifier(Protocol):
    """A verifier that checks many replies at once faster than one by one."""

    def verdicts(self, replies: Sequence[Reply]) -> list[Verdict]: ...


@runtime_checkable
class AnswerVerifier(Protocol):
    """A verifier of final answers, which can be counted in a vote."""

    def read_answer(self, response: str) -> str | None:
        """What a reply states, the same text for equal answers; None where it states none."""
        ...


ABSTAINS = Verdict(math.nan)


@lru_cache(maxsize=8)
def verifier_of(settings: TermSettings, runs_in: Any) -> Verifier:
    """The verifier of these settings: one object per process, with its caches, for reward and metric.

    Args:
        runs_in: `settings.runs_in(config)`: where programs run, of the kinds that run them.
    """
    module = import_module(registry.implementation("reward", registry.kind_of("reward", settings)))
    verifier: Verifier = module.make(settings, runs_in) if settings.runs_code else module.make(settings)
    return verifier


def check_replies(verifier: Verifier, replies: Sequence[Reply]) -> RewardBatch:
    """Verdicts as arrays; a part that a verdict lacks is NaN there."""
    if isinstance(verifier, BatchVerifier):
        verdicts = verifier.verdicts(replies)
    else:
        verdicts = [_verdict(verifier, facts, prompt, response) for facts, prompt, response in replies]
    names = dict.fromkeys(name for verdict in verdicts for name in verdict.parts)
    parts = {name: _floats([verdict.parts.get(name, math.nan) for verdict in verdicts]) for name in names}
    return RewardBatch(_floats([verdict.score for verdict in verdicts]), parts)


def _verdict(verifier: Verifier, facts: Mapping[str, Any], prompt: str, response: str) -> Verdict:
    if isinstance(verifier, DetailedVerifier):
        return verifier.verdict(facts, prompt, response)
    return Verdict(verifier.score(facts, prompt, response))


def _floats(values: Sequence[float]) -> FloatArray:
    return np.array(values, dtype=np.float64)


class VerifierReward:
    """A verifier as a term of the reward: its score, and its parts beside it."""

    def __init__(self, verifier: Verifier):
        self.verifier = verifier

    def score_episodes(self, episodes: Sequence[Episode]) -> RewardBatch:
        """An episode of several turns is checked by its last reply."""
        replies = [(episode.task.facts, episode.prompt, episode.response) for episode in episodes]
        return check_replies(self.verifier, replies)
