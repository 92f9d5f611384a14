"""One attempt at a stage: its run directory, its config, what it starts from, and its logs.

The run directory is the database. `config.yaml`, `manifest.json`, `metrics.jsonl`, `evaluation.jsonl`,
`policies.jsonl` and `result.json` are read back by key; no number is parsed out of console text.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from rlhf_lab.config import registry
from rlhf_lab.config.root import Config
from rlhf_lab.core import measures, ranks
from rlhf_lab.core.arrays import FloatArray
from rlhf_lab.core.episodes import Episode
from rlhf_lab.core.files import append_jsonl, truncate
from rlhf_lab.core.types import AnswerChecking, Corpus, Pair
from rlhf_lab.data.made import read_made
from rlhf_lab.data.mixture import mixed
from rlhf_lab.models.one_base import OneBase
from rlhf_lab.models.skeleton import MAIN
from rlhf_lab.trackers.tracking import Tracking
from rlhf_lab.training import peak_memory


def is_there(role: str) -> None:
    """Default of `Run.await_need`: every role was complete before the stage began, so there is nothing to wait for."""


GOLD = "rlhf_lab.rewards.gold_oracle"
"""The module of what makes a model or a judge the gold of a run. Imported by name: rewards lie above training."""
VERIFIED = "rlhf_lab.rewards.verifiers.oracle"
"""The module of what makes a verifier the oracle of a run's data."""


@dataclass
class Run:
    """What an algorithm gets to work with.

    Attributes:
        folder: the run directory.
        config: the checked config of this stage.
        needs: role → model folder or hub id.
        checkpoint: state of an interrupted attempt at this stage, to go on from.
        cost: what training took, see metrics.py; the largest of the processes that shared it.
        notes: remarks for the person who reads the result, in order.
        tracking: gets every logged row too.
        await_need: to be called with a role of the algorithm's `late_needs` before what stands in it is read.
        base: of the policy's adapter, once that is loaded, if other models can share it.
    """

    folder: Path
    config: Config
    needs: Mapping[str, str]
    checkpoint: dict[str, Any] | None = None
    cost: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    tracking: Tracking = field(default_factory=Tracking)
    await_need: Callable[[str], None] = is_there
    base: OneBase | None = None

    def __post_init__(self) -> None:
        self.started = time.monotonic()
        self.floor_gib = peak_memory.floor_gib()  # what the process holds before it has built a model

    @cached_property
    def corpus(self) -> Corpus:
        """What the stage works with: its data, with the gold that `needs.gold` or `needs.judge` gives them."""
        if "gold" in self.needs:
            with_gold: Corpus = import_module(GOLD).by_model(self.data, self)
            return with_gold
        section = self.config.gold_section
        if section:
            with_section_gold: Corpus = getattr(self.config, section).gold(self.data, self)
            return with_section_gold
        return self.data

    @cached_property
    def data(self) -> Corpus:
        """The run's own data; where `needs` names made corpora, with their rows to train on."""
        if not self.config.corpus_roles:
            return self.own_corpus
        uses_row = self.config.algorithm.uses_row
        return mixed(self.own_corpus, self.made_rows, self.config.mixture, uses_row, self.seed)

    @cached_property
    def made_rows(self) -> dict[str, list[Pair]]:
        """All rows of the made corpora that `needs` names, by role."""
        kind = self.config.algorithm.trains_on
        return {role: read_made(Path(self.needs[role]), kind) for role in self.config.corpus_roles}

    @cached_property
    def own_corpus(self) -> Corpus:
        """The data; their oracle checks replies as the verifier of the run's reward does, so that both judge alike."""
        corpus: Corpus = registry.build("data", self.config.data)
        measures.declare(f"data={registry.kind_of('data', self.config.data)}", corpus.measures)
        reward_terms = self.config.reward.terms.values() if "reward" in self.config.algorithm.uses else ()
        is_lenient = any(registry.kind_of("reward", term) == "verifier" and term.lenient for term in reward_terms)
        if is_lenient and isinstance(corpus.oracle, AnswerChecking):
            corpus = replace(corpus, oracle=corpus.oracle.leniently())
        verifier = self.config.verifier
        if verifier is not None:
            corpus = import_module(VERIFIED).verified(corpus, verifier, verifier.runs_in(self.config))
        return corpus

    def measure_samples(self, episodes: Sequence[Episode]) -> Mapping[str, FloatArray]:
        """What is known of the replies that a policy trains on, as `Corpus.measure`.

        What a section says, such as a judge, is not asked for: every response of a training run would be paid for.
        """
        corpus = self.data if self.config.gold_section else self.corpus
        return corpus.measure(episodes)

    @cached_property
    def device(self) -> str:
        return ranks.device(self.config.runtime.device)

    @property
    def load_device(self) -> str:
        """Where trained models are built: FSDP moves them from host memory of the main process shard by shard."""
        is_sharded = registry.kind_of("sharding", self.config.sharding) == "fsdp" and ranks.world() > 1
        return MAIN if is_sharded else self.device

    def autocast(self) -> torch.autocast:
        """The arithmetic of forward passes; see Runtime.dtype.

        Rounded weights are not kept for the time of the context: that would be a bfloat16 copy of every block, also
        where checkpointing and passes without gradient need one block at a time. A pass rounds each weight once.
        """
        enabled = self.config.runtime.dtype == "bfloat16"
        return torch.autocast(self.device, dtype=torch.bfloat16, enabled=enabled, cache_enabled=False)

    def seed(self, purpose: str, index: int = 0) -> int:
        """A seed for one purpose, different for every run seed, purpose and index."""
        return seed_for(self.config.seed, purpose, index)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def log(self, step: int, **metrics: float) -> None:
        """Append one row to metrics.jsonl; values that are not finite become null."""
        values = {key: value if math.isfinite(value) else None for key, value in metrics.items()}
        row = {"step": step, "time": round(time.monotonic() - self.started, 3), **values}
        append_jsonl(self.folder / "metrics.jsonl", [row])
        self.tracking.log(row)

    def log_size(self) -> int:
        path = self.folder / "metrics.jsonl"
        return path.stat().st_size if path.exists() else 0

    def rewind_log(self, size: int) -> None:
        """Cut metrics.jsonl to this size in bytes: an interrupted attempt logged the rows after it, and they are about
        to be logged again."""
        truncate(self.folder / "metrics.jsonl", size)


def seed_for(seed: int, purpose: str, index: int = 0) -> int:
    """A 63-bit seed from (seed, purpose, index), the same on every machine.

    FNV-1a with a start value of its own: Python's `hash` of a text differs from process to process.
    """
    value = 1469598103934665603
    for byte in f"{seed}/{purpose}/{index}".encode():
        value = (value ^ byte) * 1099511628211 % 2**64
    return value >> 1


@dataclass
class Result:
    """What a stage measured.

    Attributes:
        policies: one entry per compared policy: {"name", "metrics": {name: Estimate}}.
        metrics: named numbers and Estimates of the stage itself.
        primary: the metrics worth a line on the console, in order.
    """

    policies: list[dict[str, Any]] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    primary: list[str] = field(default_factory=list)
