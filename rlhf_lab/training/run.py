"""One attempt at a stage: its run directory, config, inputs and logs.

The run directory is the database. `config.yaml`, `manifest.json`, `metrics.jsonl`, `evaluation.jsonl`,
`policies.jsonl` and `result.json` are read by key; no number is parsed from console text.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from rlhf_lab.config import registry
from rlhf_lab.config.root import Config
from rlhf_lab.core import measures, ranks
from rlhf_lab.core.arrays import FloatArray
from rlhf_lab.core.console import console
from rlhf_lab.core.episodes import Episode
from rlhf_lab.core.files import append_jsonl, truncate
from rlhf_lab.core.packs import load, named
from rlhf_lab.core.types import AnswerChecking, Corpus, Pair
from rlhf_lab.data.generated import read_generated
from rlhf_lab.data.mixture import mixed
from rlhf_lab.models.one_base import OneBase
from rlhf_lab.models.skeleton import MAIN
from rlhf_lab.trackers.tracking import Tracking
from rlhf_lab.training import peak_memory


def is_there(role: str) -> None:
    """Do nothing: default of `Run.await_need`, for stages whose inputs were all complete before the start."""


@dataclass
class Run:
    """Everything that an algorithm works with.

    Attributes:
        directory: run directory.
        config: checked config of this stage.
        needs: role → model directory or hub id.
        checkpoint: state of an interrupted attempt at this stage, from which it resumes.
        cost: costs of training (definitions: metrics.py); the maximum over its processes.
        notes: notes for the reader of the result, in order.
        tracking: trackers, which also get every logged row.
        await_need: function to call with a role of the algorithm's `late_needs` before its content is read.
        stopping: event that is set once the process was told to stop; a long wait should then end.
        base: base of the policy's adapter once it is loaded, if other models can share it.
    """

    directory: Path
    config: Config
    needs: Mapping[str, str]
    checkpoint: dict[str, Any] | None = None
    cost: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    tracking: Tracking = field(default_factory=Tracking)
    await_need: Callable[[str], None] = is_there
    stopping: threading.Event = field(default_factory=threading.Event)
    base: OneBase | None = None

    def __post_init__(self) -> None:
        self.started = time.monotonic()
        self.floor_gib = peak_memory.floor_gib()  # memory of the process before it builds a model

    @cached_property
    def corpus(self) -> Corpus:
        """The stage's data, with the gold of `needs.gold` or `needs.judge` if set."""
        role = self.config.gold_role
        if not role:
            return self.data
        with_gold: Corpus = load(named("gold_sources")[role])(self.data, self)
        return with_gold

    @cached_property
    def data(self) -> Corpus:
        """The run's own data; with synthetic corpora in `needs`, mixed with their training rows."""
        if not self.config.corpus_roles:
            return self.own_corpus
        uses_row = self.config.algorithm.uses_row
        return mixed(self.own_corpus, self.generate_rows, self.config.mixture, uses_row, self.seed)

    @cached_property
    def generate_rows(self) -> dict[str, list[Pair]]:
        """All rows of the synthetic corpora in `needs`, by role."""
        kind = self.config.algorithm.trains_on
        return {role: read_generated(Path(self.needs[role]), kind) for role in self.config.corpus_roles}

    @cached_property
    def own_corpus(self) -> Corpus:
        """The data. Its oracle checks responses exactly as the verifier of the run's reward does."""
        corpus: Corpus = registry.build("data", self.config.data)
        measures.declare(f"data={registry.kind_of('data', self.config.data)}", corpus.measures)
        reward_terms = self.config.reward.terms.values() if "reward" in self.config.algorithm.inputs.sections else ()
        # Oracle and reward must accept the same answers; otherwise gold would differ from the reward by their format.
        is_lenient = any(registry.kind_of("reward", term) == "verifier" and term.lenient for term in reward_terms)
        if is_lenient and isinstance(corpus.oracle, AnswerChecking):
            corpus = replace(corpus, oracle=corpus.oracle.leniently())
        verifier = self.config.verifier
        if verifier is not None:
            corpus = verifier.as_oracle(corpus, self.config)
        return corpus

    def with_data(self, corpus: Corpus) -> Run:
        """Return this run with other data, such as the same prompts with audio that another process decodes."""
        run = replace(self)
        run.data = corpus
        return run

    def measure_samples(self, episodes: Sequence[Episode]) -> Mapping[str, FloatArray]:
        """Return the measures of responses that a policy trains on, as `Corpus.measure`.

        A gold that is not a local model, such as a judge, is not called: every response of a training run would cost
        money.
        """
        # Without its role in `needs`, gold is not a local model.
        role = self.config.gold_role
        corpus = self.corpus if role in self.needs else self.data
        return corpus.measure(episodes)

    @cached_property
    def device(self) -> str:
        return ranks.device(self.config.runtime.device)

    @property
    def load_device(self) -> str:
        """Device on which trained models are built. FSDP shards them from host memory of the main process."""
        is_sharded = registry.kind_of("sharding", self.config.sharding) == "fsdp" and ranks.world() > 1
        return MAIN if is_sharded else self.device

    def autocast(self) -> torch.autocast:
        """Return the autocast context of forward passes; see Runtime.dtype.

        The cache of rounded weights is off: it would be a bfloat16 copy of every block, even if checkpointing or passes
        without gradient need only one block at a time. A pass rounds each weight once anyway.
        """
        enabled = self.config.runtime.dtype == "bfloat16"
        return torch.autocast(self.device, dtype=torch.bfloat16, enabled=enabled, cache_enabled=False)

    def seed(self, purpose: str, index: int = 0) -> int:
        """Return a seed for one purpose, different for every run seed, purpose and index."""
        return seed_for(self.config.seed, purpose, index)

    def note(self, text: str) -> None:
        # An event may repeat in every step, e.g. an alarm of rollouts; the reader needs it once.
        if text not in self.notes:
            self.notes.append(text)
            console.detail(f"  note: {text}")

    def log(self, step: int, **metrics: float) -> None:
        """Append one row to metrics.jsonl; non-finite values become null."""
        values = {key: value if math.isfinite(value) else None for key, value in metrics.items()}
        row = {"step": step, "time": round(time.monotonic() - self.started, 3), **values}
        append_jsonl(self.directory / "metrics.jsonl", [row])
        self.tracking.log(row)

    def log_size(self) -> int:
        path = self.directory / "metrics.jsonl"
        return path.stat().st_size if path.exists() else 0

    def rewind_log(self, size: int) -> None:
        """Truncate metrics.jsonl to this size in bytes, because a resumed attempt logs the later rows again."""
        truncate(self.directory / "metrics.jsonl", size)


def seed_for(seed: int, purpose: str, index: int = 0) -> int:
    """Return a 63-bit seed from (seed, purpose, index) that is the same on every machine.

    This is FNV-1a with a different start value. Python's `hash` of a text differs between processes.
    """
    value = 1469598103934665603  # changing this start value would change every random number of every run
    for byte in f"{seed}/{purpose}/{index}".encode():
        value = (value ^ byte) * 1099511628211 % 2**64
    return value >> 1  # 63 bits, so that the seed also fits a signed 64-bit integer


@dataclass
class Result:
    """Measurements of a stage.

    Attributes:
        policies: one entry per compared policy: {"name", "metrics": {name: Estimate}}.
        metrics: numbers and Estimates of the stage itself, by name.
        primary: metrics that are printed on the console, in order.
        failure: reason why the numbers miss a threshold of the settings, which sets the exit status to 1; else empty.
    """

    policies: list[dict[str, Any]] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    primary: list[str] = field(default_factory=list)
    failure: str = ""
