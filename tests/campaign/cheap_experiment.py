"""An experiment in the embedded dialogue world that takes milliseconds: a linear reward model and best of two by it.

Facts, corpus, labels and test prompts come from the world's code, and test numbers are stored as a run stores them.
The reward model is a linear Bradley-Terry model on features of the response, trained in one pass over its pairs. A seed
of training sets its first weights and the order of the pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from zlib import crc32

import numpy as np

from rlhf_lab.core.types import FloatArray, Pair
from rlhf_lab.data.world_settings import MiniHH
from rlhf_lab.environments.annotator import Annotator
from rlhf_lab.environments.dialogue.world import DialogueWorld
from rlhf_lab.evaluations.reward_audit import audit_margins, prompt_ids
from rlhf_lab.statistics.inference import Estimate, clustered_mean, clustered_rate

LEVELS = (120, 480, 40)
"""Training pairs of the levels. Of 40 the reward model hardly learns: in some worlds it fails, and differences from it
are strongly skewed."""
METRICS = ("gold", "accuracy", "gold_agreement", "verbose", "garble")
"""Measured metrics: gold of the choice is a mean, the others are rates; garble is the smallest one, near .1."""
BUCKETS = 48
BATCH = 10
RATE = 0.15
FIRST_WEIGHTS = 0.2


@dataclass(frozen=True)
class Split:
    """Labelled pairs and their features, chosen − rejected, (N, F)."""

    pairs: list[Pair]
    features_NF: FloatArray


def draw_world(seed: int) -> DialogueWorld:
    """The world of `data=mini_hh` with the facts of a seed."""
    settings = MiniHH()
    return DialogueWorld(
        domains=settings.domains,
        topics=settings.topics,
        attributes=settings.attributes,
        seed=seed,
        annotator=Annotator(**asdict(settings.annotator)),
    )


def draw_split(world: DialogueWorld, count: int, name: str, seed: int) -> Split:
    pairs = world.pairs(count, name, seed=seed)
    chosen, rejected = (np.stack([_features(getattr(pair, side)) for pair in pairs]) for side in ("chosen", "rejected"))
    return Split(pairs, chosen - rejected)


@lru_cache(maxsize=20_000)
def _features(response: str) -> FloatArray:
    """Words, exclamations, sentences, and counts of words by a hash that is the same in every process."""
    words = response.split()
    counts = np.zeros(3 + BUCKETS)
    counts[:3] = len(words) / 10, response.count("!"), response.count(".") / 3
    for word in words:
        counts[3 + _bucket(word)] += 0.3
    return counts


@lru_cache(maxsize=20_000)
def _bucket(word: str) -> int:
    return crc32(word.lower().strip(".,!?").encode()) % BUCKETS


def train(features_NF: FloatArray, seed: int) -> FloatArray:
    """Weights, (F,), after one pass of stochastic gradient descent on −log σ(w · (chosen − rejected))."""
    rng = np.random.default_rng(seed)
    weights_F = rng.normal(0, FIRST_WEIGHTS, features_NF.shape[1])
    shuffled_NF = features_NF[rng.permutation(len(features_NF))]
    for start in range(0, len(shuffled_NF), BATCH):
        batch_BF = shuffled_NF[start : start + BATCH]
        wrong_B = 1 / (1 + np.exp(batch_BF @ weights_F))
        weights_F = weights_F + RATE * wrong_B @ batch_BF / len(batch_BF)
    return weights_F


def sides(pairs: Sequence[Pair]) -> dict[str, FloatArray]:
    """Gold, verbose and garble of the chosen and the rejected response of each pair, (N, 2) each."""
    names = ("gold", "verbose", "garble")
    return {name: np.array([[p.meta[f"{name}_chosen"], p.meta[f"{name}_rejected"]] for p in pairs]) for name in names}


def choices(margin_N: FloatArray, sides: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """The same of the response that the reward prefers, (N,) each."""
    return {name: np.where(margin_N > 0, both[:, 0], both[:, 1]).astype(float) for name, both in sides.items()}


def measure(weights_F: FloatArray, test: Split) -> dict[str, Estimate]:
    """The estimates that a run would store, by name of `METRICS`."""
    margin_N = test.features_NF @ weights_F
    audit, prompts = audit_margins(margin_N, test.pairs), prompt_ids(test.pairs)
    chosen = choices(margin_N, sides(test.pairs))
    return {
        "gold": clustered_mean(chosen["gold"], prompts),
        "accuracy": audit["accuracy"],
        "gold_agreement": audit["gold_agreement"],
        "verbose": clustered_rate(chosen["verbose"], prompts),
        "garble": clustered_rate(chosen["garble"], prompts),
    }


def measure_levels(corpus: Split, test: Split, seed: int) -> FloatArray:
    """Both levels trained with a seed and measured, (levels, metrics, 4): mean, low, high, n."""
    rows = []
    for count in LEVELS:
        estimates = measure(train(corpus.features_NF[:count], seed), test)
        rows.append([numbers(estimates[name]) for name in METRICS])
    return np.array(rows)


def numbers(estimate: Estimate) -> tuple[float, float, float, float]:
    """Return the numbers of a stored estimate that a study reads: mean, low, high, n."""
    return estimate.mean, estimate.low, estimate.high, float(estimate.n)
