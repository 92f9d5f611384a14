"""The reward graph: terms are scored, standardised, transformed, aggregated, calibrated; every node's value is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlhf_lab.config import registry
from rlhf_lab.config.sections import RewardGraph
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import read_json, write_json
from rlhf_lab.core.types import FloatArray, Reward, RewardBatch
from rlhf_lab.rewards.checked import CheckedReward
from rlhf_lab.rewards.combine import BASELINE, CONFIDENCE, SCALES_FILE, aggregate, bounded, calibrate, with_scales
from rlhf_lab.rewards.confidence import stated_confidence, without_confidence
from rlhf_lab.training.run import Run

SCALE_REPLIES = 512


class GraphReward(CheckedReward):
    """Scores replies with all terms of a graph.

    Args:
        terms: name → checked term.
        settings: how they are combined; every term's scale is known.

    Attributes:
        baseline: running mean of the rewards of training, what PPO-C holds a stated confidence against. It moves by
            `observe` alone, so that an evaluation does not disturb training.
    """

    def __init__(self, terms: Mapping[str, CheckedReward], settings: RewardGraph):
        super().__init__("+".join(terms), self._score, collective=True)
        self.terms, self.settings, self.baseline = terms, settings, 0.0

    def _score(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        """`parts` holds every term's value, its own parts as "term/part", and what later nodes said."""
        parts: dict[str, FloatArray] = {}
        if self.settings.confidence_weight:
            parts[CONFIDENCE] = np.array([stated_confidence(text) for text in responses], dtype=np.float64)
            parts[BASELINE] = np.full(len(responses), self.baseline)
            responses = [without_confidence(text) for text in responses]
        for name, term in self.terms.items():
            batch = term(prompts, responses)
            parts[name] = batch.total_N
            parts |= {f"{name}/{part}": values for part, values in batch.parts.items() if part != name}
        total_N = aggregate(parts, self.settings)
        if self.settings.calibrates:
            parts["aggregate"] = total_N
        return RewardBatch(calibrate(total_N, parts, self.settings), parts)

    def observe(self, batch: RewardBatch) -> None:
        """Take a training batch into the running mean, before the stated confidence changed its rewards."""
        if self.settings.confidence_weight:
            known_N = bounded(aggregate(batch.parts, self.settings), self.settings)
            known_N = known_N[np.isfinite(known_N)]
            if len(known_N):
                decay = self.settings.confidence_decay
                self.baseline = (1 - decay) * self.baseline + decay * float(known_N.mean())

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint of training has to keep."""
        counts = {name: [term.scored, term.abstained, term.failed] for name, term in self.terms.items()}
        return {"baseline": self.baseline, "counts": counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self.baseline = float(state["baseline"])
        for name, (scored, abstained, failed) in state["counts"].items():
            term = self.terms[name]
            term.scored, term.abstained, term.failed = int(scored), int(abstained), int(failed)


def part_means(parts: Mapping[str, FloatArray]) -> dict[str, float]:
    """Mean of every node over the replies it scored, as "reward/<node>"; NaN where it scored none."""
    known = {name: values_N[np.isfinite(values_N)] for name, values_N in parts.items()}
    return {f"reward/{name}": float(v.mean()) if len(v) else float("nan") for name, v in known.items()}


def build_graph(settings: RewardGraph, run: Run) -> GraphReward:
    """The reward of a run: each term checked by itself, then their sum."""
    terms = {name: _term(name, term, run) for name, term in settings.terms.items()}
    saved = read_json(run.folder / SCALES_FILE) or {}  # of the attempt that is resumed
    wanted = [name for name, term in settings.terms.items() if term.standardise == "corpus"]
    scales = {name: saved.get(name) or _corpus_scale(terms[name], run) for name in wanted}
    if scales:
        write_json(run.folder / SCALES_FILE, scales)
    return GraphReward(terms, with_scales(settings, scales))


def _corpus_scale(term: CheckedReward, run: Run) -> dict[str, float]:
    """Mean and sd of a term on the first chosen replies of the training data."""
    pairs = run.corpus.train[:SCALE_REPLIES]
    values_N = term([pair.prompt for pair in pairs], [pair.chosen for pair in pairs]).total_N
    values_N = values_N[np.isfinite(values_N)]
    if not len(values_N) or values_N.std() <= 1e-9 * (1 + abs(values_N.mean())):
        raise ConfigError(
            f"reward.terms.{term.name}.standardise=corpus: the term is the same for all {len(values_N)} replies that "
            "it scored, so it has no scale; give it one with standardise=fixed, mean and sd"
        )
    return {"mean": float(values_N.mean()), "sd": float(values_N.std()), "n": len(values_N)}


class OneNote:
    """A remark about a run that is kept up to date instead of repeated."""

    def __init__(self, notes: list[str]):
        self.notes, self.place = notes, -1

    def __call__(self, text: str) -> None:
        if self.place < 0:
            self.place = len(self.notes)
            self.notes.append(text)
        self.notes[self.place] = text


def _term(name: str, settings: Any, run: Run) -> CheckedReward:
    reward: Reward = registry.build("reward", settings, run)
    tell = OneNote(run.notes)
    shared = getattr(reward, "collective", False)
    return CheckedReward(
        name, reward, on_error=settings.on_error, timeout_s=settings.timeout_s, collective=shared, note=tell
    )


def build_reward(run: Run) -> GraphReward | None:
    """The configured reward, or None when a term reads a model that this run does not name."""
    if any(not run.needs.get(role) for role in run.config.reward.roles):
        return None
    return build_graph(run.config.reward, run)
