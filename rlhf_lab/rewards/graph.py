"""The reward graph: terms are scored, standardised, transformed, added and calibrated; all values are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlhf_lab.config import registry
from rlhf_lab.core.episodes import Episode
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import read_object, write_json
from rlhf_lab.core.types import Corpus, EpisodeReward, FloatArray, Reward, RewardBatch, TextReward
from rlhf_lab.rewards.checked import CheckedReward
from rlhf_lab.rewards.combine import (
    BASELINE,
    CONFIDENCE,
    SCALES_FILE,
    aggregate,
    bounded,
    calibrate,
    unverified,
    with_scales,
)
from rlhf_lab.rewards.confidence import stated_confidence, without_confidence
from rlhf_lab.rewards.settings import RewardGraph
from rlhf_lab.training.run import Run

SCALE_REPLIES = 512
"""Maximum number of chosen responses of the training data on which `standardise=corpus` measures a term."""


class GraphReward(CheckedReward):
    """Reward that scores episodes with all terms of a graph.

    Args:
        settings: combination of the terms; every term's scale is known.

    Attributes:
        baseline: running mean of the training rewards, with which PPO-C compares a stated confidence. Only `observe`
            updates it, so that an evaluation does not disturb training.
    """

    def __init__(self, terms: Mapping[str, CheckedReward], settings: RewardGraph):
        super().__init__("+".join(terms), Combined(self), collective=True)
        self.terms = terms
        self.settings = settings
        self.baseline = 0.0

    def score_terms(self, episodes: Sequence[Episode]) -> RewardBatch:
        """Score the terms. `parts` has each term's value, its parts as "term/part", and further nodes that are used."""
        parts: dict[str, FloatArray] = {}
        if self.settings.confidence_weight:
            stated = [stated_confidence(episode.response) for episode in episodes]
            parts[CONFIDENCE] = np.array(stated, dtype=np.float64)
            parts[BASELINE] = np.full(len(episodes), self.baseline)
            # The terms must not reward or punish the statement itself, so they score the response without it.
            episodes = [replace(episode, response=without_confidence(episode.response)) for episode in episodes]
        turns: dict[str, Sequence[Sequence[float]]] = {}
        for name, term in self.terms.items():
            batch = term(episodes)
            if batch.turns is not None:
                turns[name] = batch.turns
            parts[name] = batch.total_N
            # A part with the term's own name repeats the term's value (`gold` has one).
            parts |= {f"{name}/{part}": values_N for part, values_N in batch.parts.items() if part != name}
        total_N = aggregate(parts, self.settings)
        if self.settings.calibrates:
            parts["aggregate"] = total_N
        reward_N = calibrate(total_N, parts, self.settings)
        unverified_N = unverified(reward_N, parts, self.settings)
        return RewardBatch(reward_N, parts, self._rewards_of_turns(turns), unverified_N)

    def _rewards_of_turns(self, turns: Mapping[str, Sequence[Sequence[float]]]) -> list[list[float]] | None:
        """Return the weighted sum of the terms that score turns; None if the graph's value is not such a sum."""
        settings = self.settings
        turns = {name: values for name, values in turns.items() if settings.weighting[name]}
        scorers = [settings.terms[name] for name in turns]
        rescaled = any(term.standardise != "none" or term.transform != "none" for term in scorers)
        if not turns or rescaled or settings.gates or settings.calibrates:
            return None
        weights = [settings.weighting[name] for name in turns]
        result = []
        for terms in zip(*turns.values(), strict=True):  # for each episode, its turns as scored by each term
            # a term that left the episode unscored has no turns, so the episode has no turn rewards either
            by_turn = zip(*terms, strict=True) if all(terms) else ()
            result.append([sum(w * reward for w, reward in zip(weights, rewards, strict=True)) for rewards in by_turn])
        return result

    def observe(self, batch: RewardBatch) -> None:
        """Update the running mean with the rewards of a training batch, before their confidence adjustment."""
        if self.settings.confidence_weight:
            rewards_N = bounded(aggregate(batch.parts, self.settings), self.settings)
            scored_N = rewards_N[np.isfinite(rewards_N)]
            if len(scored_N):
                decay = self.settings.confidence_decay
                self.baseline = (1 - decay) * self.baseline + decay * float(scored_N.mean())

    def state_dict(self) -> dict[str, Any]:
        counts = {name: [term.scored, term.abstained, term.failed] for name, term in self.terms.items()}
        faults = {name: term.faults for name, term in self.terms.items()}
        return {"baseline": self.baseline, "counts": counts, "faults": faults}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.baseline = float(state["baseline"])
        for name, (scored, abstained, failed) in state["counts"].items():
            term = self.terms[name]
            term.scored, term.abstained, term.failed = int(scored), int(abstained), int(failed)
        for name, (first_failure, returned_nan) in state["faults"].items():
            self.terms[name].faults = (str(first_failure), int(returned_nan))


@dataclass(frozen=True)
class Combined:
    """The terms of a graph as one term, so that `CheckedReward` also checks their combination."""

    graph: GraphReward

    def score_episodes(self, episodes: Sequence[Episode]) -> RewardBatch:
        return self.graph.score_terms(episodes)


def part_means(parts: Mapping[str, FloatArray]) -> dict[str, float]:
    """Return the mean of every node over its scored responses, as "reward/<node>"; NaN if it scored none."""
    means = {}
    for name, values_N in parts.items():
        scored_N = values_N[np.isfinite(values_N)]
        means[f"reward/{name}"] = float(scored_N.mean()) if len(scored_N) else float("nan")
    return means


def build_graph(settings: RewardGraph, run: Run) -> GraphReward:
    """Return the reward of a run: each term with its own check, then their combination."""
    terms = {name: _build_term(name, term, run) for name, term in settings.terms.items()}
    # A resumed attempt keeps the scales it measured first, so that its rewards keep the same unit.
    saved = read_object(run.directory / SCALES_FILE)
    on_corpus = [name for name, term in settings.terms.items() if term.standardise == "corpus"]
    scales = {name: saved.get(name) or _measure_scale(terms[name], run) for name in on_corpus}
    if scales:
        write_json(run.directory / SCALES_FILE, scales)
    return GraphReward(terms, with_scales(settings, scales))


def _measure_scale(term: CheckedReward, run: Run) -> dict[str, float]:
    """Return mean, sd and n of a term on the first chosen responses of the training data."""
    pairs = run.corpus.train[:SCALE_REPLIES]
    values_N = term(run.corpus.episodes([pair.prompt for pair in pairs], [pair.chosen for pair in pairs])).total_N
    values_N = values_N[np.isfinite(values_N)]
    # The threshold is relative to the mean, because the sd of equal values is not exactly 0 in floating point.
    if not len(values_N) or values_N.std() <= 1e-9 * (1 + abs(values_N.mean())):
        raise ConfigError(
            f"reward.terms.{term.name}.standardise=corpus: the term is equal for all {len(values_N)} responses that "
            "it scored, so it has no scale; give it one with standardise=fixed, mean and sd"
        )
    return {"mean": float(values_N.mean()), "sd": float(values_N.std()), "n": len(values_N)}


class OneNote:
    """Note of a run that is overwritten at each call, because the counts in it grow."""

    def __init__(self, notes: list[str]):
        self.notes = notes
        self.position = -1  # index in `notes`; negative until the first call

    def __call__(self, text: str) -> None:
        if self.position < 0:
            self.position = len(self.notes)
            self.notes.append(text)
        self.notes[self.position] = text


def _build_term(name: str, settings: Any, run: Run) -> CheckedReward:
    reward: TextReward | EpisodeReward = registry.build("reward", settings, run)
    return CheckedReward(
        name,
        reward,
        on_error=settings.on_error,
        timeout_s=settings.timeout_s,
        collective=getattr(reward, "collective", False),
        note=OneNote(run.notes),
    )


def build_reward(run: Run) -> GraphReward | None:
    """Return the configured reward, or None if a term reads a model that this run does not name."""
    is_complete = all(run.needs.get(role) for role in run.config.reward.roles)
    return build_graph(run.config.reward, run) if is_complete else None


def text_reward(reward: Reward, corpus: Corpus) -> TextReward:
    """Return a reward of (prompts, responses) for responses that are known as text only, e.g. those of the data."""
    return lambda prompts, responses: reward(corpus.episodes(prompts, responses))
