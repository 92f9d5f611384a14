"""Interface of verifiers, programs that check a response against its row, and the reward built from a verifier.

A verifier reads the metadata of a row (answer, tests, instructions, schema), the prompt and the response. The reward of
a run (`VerifierTermReward`) and its metric `correct` (`oracle.py`) use the same object, so they cannot disagree. The
module of a kind defines `make(settings)`, which returns the verifier, and `build(settings, run)`, which returns it as a
reward.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rlhf_lab.config import registry
from rlhf_lab.core.episodes import Episode
from rlhf_lab.core.types import RewardBatch
from rlhf_lab.rewards.term import TermSettings
from rlhf_lab.statistics.estimates import floats

if TYPE_CHECKING:  # this module imports torch, and reading data with a verifier must not
    from rlhf_lab.training.run import Run

GradedTriple = tuple[Mapping[str, Any], str, str]
"""(metadata of the row, prompt, response)."""


@dataclass(frozen=True, slots=True)
class VerifierVerdict:
    """Result of checking a response.

    Attributes:
        score: 1 for a response that does everything requested, 0 for one that does nothing of it, else the fraction;
            NaN if the row lacks what the check needs, or if the check has no result.
        parts: name → additional value, e.g. the score under a more lenient reading; NaN if unknown.
    """

    score: float
    parts: Mapping[str, float] = field(default_factory=dict)


@runtime_checkable
class SimpleVerifier(Protocol):
    """Verifier that returns the score alone. The same arguments always give the same score."""

    def score(self, metadata: Mapping[str, Any], prompt: str, response: str) -> float:
        """Return the score in 0…1; see `VerifierVerdict.score`.

        Args:
            metadata: columns of the prompt's row that are not text of the conversation, including `answer`.
            prompt: transcript that ends where the response starts.
            response: text of the response.
        """
        ...


@runtime_checkable
class DetailedVerifier(Protocol):
    """Verifier that returns the score with its parts."""

    def verdict(self, metadata: Mapping[str, Any], prompt: str, response: str) -> VerifierVerdict: ...


@runtime_checkable
class BatchVerifier(Protocol):
    """Verifier that checks many responses at once faster than one by one."""

    def verdicts(self, responses: Sequence[GradedTriple]) -> list[VerifierVerdict]: ...


@runtime_checkable
class AnswerVerifier(Protocol):
    """Verifier of final answers that can be counted in a majority vote."""

    def read_answer(self, response: str) -> str | None:
        """Return the answer that a response states, with equal texts for equal answers; None if it states none."""
        ...


Verifier = SimpleVerifier | DetailedVerifier | BatchVerifier

ABSTAINS = VerifierVerdict(math.nan)
"""Verdict of a verifier that cannot check the row."""


@lru_cache(maxsize=8)
def verifier_of(settings: TermSettings, runs_in: Any) -> Verifier:
    """Return the verifier of these settings: one object per process, with its caches, for reward and metric.

    Args:
        runs_in: section where programs run, for kinds that run them: `settings.runs_in(config)`.
    """
    # Imported late, because implementations may import large libraries that settings do not need.
    module = import_module(registry.implementation("reward", registry.kind_of("reward", settings)))
    verifier: Verifier = module.make(settings, runs_in) if settings.runs_code else module.make(settings)
    return verifier


def check_responses(verifier: Verifier, responses: Sequence[GradedTriple]) -> RewardBatch:
    """Return the verdicts as arrays; a part that a verdict lacks is NaN."""
    if isinstance(verifier, BatchVerifier):
        verdicts = verifier.verdicts(responses)
    elif isinstance(verifier, DetailedVerifier):
        verdicts = [verifier.verdict(*response) for response in responses]
    else:
        verdicts = [VerifierVerdict(verifier.score(*response)) for response in responses]
    names = dict.fromkeys(name for verdict in verdicts for name in verdict.parts)
    parts = {name: floats([verdict.parts.get(name, math.nan) for verdict in verdicts]) for name in names}
    return RewardBatch(floats([verdict.score for verdict in verdicts]), parts)


class VerifierTermReward:
    """Verifier as a term of the reward: its score, with the parts of the score."""

    def __init__(self, verifier: Verifier):
        self.verifier = verifier

    def score_episodes(self, episodes: Sequence[Episode]) -> RewardBatch:
        """Score episodes. An episode of several turns is checked by its last response."""
        responses = [(episode.task.metadata, episode.prompt, episode.response) for episode in episodes]
        return check_responses(self.verifier, responses)


def term_reward(settings: TermSettings, run: Run) -> VerifierTermReward:
    """Return the reward of the settings: their verifier as a term."""
    return VerifierTermReward(verifier_of(settings, settings.runs_in(run.config)))
