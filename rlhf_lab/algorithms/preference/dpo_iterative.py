"""Iterative DPO: roll out, rank, pair, train, evaluate, and again with the new policy.

A round's pairs are written to rounds/ when they are made (`rounds.py`), so a resumed run trains on the very same
ones. All rounds take the same number of steps; a buffer decides which rounds' pairs those steps draw from.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from rlhf_lab.algorithms.preference.dpo import Given, PairTable, PreferenceAlgorithm
from rlhf_lab.algorithms.preference.rounds import RollOut, Round, RoundFiles
from rlhf_lab.algorithms.preference.settings import IterativeDPO
from rlhf_lab.config import registry
from rlhf_lab.core import ranks
from rlhf_lab.core.errors import ArtifactError, ConfigError, DataError
from rlhf_lab.evaluations.evaluator import REFERENCE_NAME
from rlhf_lab.losses.preference import PairLogps
from rlhf_lab.models.build import load_policy
from rlhf_lab.models.pair_rows import PairRows, pair_logps, pair_rows
from rlhf_lab.monitoring.monitor import Watch
from rlhf_lab.training.batching import plan_steps
from rlhf_lab.training.loop import StepBatch
from rlhf_lab.training.run import Result, Run
from rlhf_lab.training.start import corpus_report, model_size


class IteratedDPO(PreferenceAlgorithm):
    """See the module's first lines. A batch's way: `collect` → `_start_round` → `RollOut.make` → `PairTable.batch`."""

    def __init__(self, settings: IterativeDPO, run: Run):
        super().__init__(settings, run)
        if self.evaluator.reward is None:
            raise ConfigError("needs.reward is not set; algorithm=dpo_iterative ranks by it (or use reward=gold)")
        self.reward = self.evaluator.reward
        sampler = registry.build("rollout", run.config.rollout, self.encoder)
        self.monitor, self.rounds = Watch(run, settings.rounds, every=1, warmup=1), RoundFiles(run)
        self.roll_out = RollOut(settings, run, self.encoder, sampler, self.reward, self.monitor)
        round_pairs = settings.prompts_per_round / (1 - settings.corpus_fraction)
        self.round_steps = max(1, math.ceil(settings.updates_per_pair * round_pairs / settings.batch_size))
        self.total_steps = settings.rounds * self.round_steps
        self.round = self.logged_round = 0
        self.staleness: list[float] = []

    def collect(self, step: int) -> StepBatch:
        round_index = step // self.round_steps + 1
        if round_index != self.round:
            self._start_round(round_index)
        if self.ended:
            return StepBatch([], units=1)
        return self.batch(self.table, self.steps[step % self.round_steps])

    def due(self, step: int) -> bool:
        return (step + 1) % self.round_steps == 0 and not self.ended

    def evaluate(self, step: int) -> None:
        self.evaluator.evaluate(REFERENCE_NAME, self.reference)
        self.evaluator.evaluate(f"iteration {(step + 1) // self.round_steps}", self.model)

    def finish(self) -> Result:
        baseline = self.run.needs.get("baseline")
        if baseline:
            self.run.await_need("baseline")
            model = load_policy(baseline, self.run.config.model, device=self.run.device)
            self.evaluator.evaluate("one-pass DPO", model)
        order = {REFERENCE_NAME: 0, "one-pass DPO": 1}
        policies = sorted(self.evaluator.policies, key=lambda p: order.get(p["name"], 2))
        report = {**model_size(self.model), **corpus_report(self.run.corpus, self.encoder)}
        metrics = {"staleness": float(np.mean(self.staleness)), **report}
        metrics |= self.monitor.totals()
        rounds = [self.rounds.read(r).metrics for r in range(1, len(self.staleness) + 1)]
        for key in ("pair_gold_agreement", "ties", "consistency"):
            if all(key in values for values in rounds):
                metrics |= {f"{key}/round {i}": values[key] for i, values in enumerate(rounds, 1)}
        return Result(policies, metrics)

    def _start_round(self, index: int) -> None:
        """Make or read the round's pairs, fill the buffer, plan the round's steps."""
        if self.ended:
            return
        new, found = self._open_round(index)
        watched = self._watch(found)
        if self.ended:
            self.rounds.write(found)
            self.run.log((index - 1) * self.round_steps, round=index, **found.metrics, **watched)
            self.round = self.logged_round = index
            return
        kept = range(max(1, index - self._window() + 1), index)
        buffer = [*(self.rounds.read(r) for r in kept), found]
        own = [pair for part in buffer for pair in part.rows()]
        if not own:
            raise DataError(
                f"round {index}: no prompt gave two replies of different reward; raise algorithm.samples_per_prompt or "
                "rollout.temperature"
            )
        corpus = self._corpus_pairs(index, len(own))
        pairs = own + corpus
        if new:
            if self.objective.needs("previous"):
                found.previous = [side.tolist() for side in self._logps(self.model, pairs)]
            self.rounds.write(found)
        self.table = PairTable(pairs, self._given(buffer, found, pairs), self.run.device)
        self.steps = self._plan(index)
        ages = np.array([*(index - part.index for part in buffer for _ in part.pairs), *(math.nan for _ in corpus)])
        self._log(found, float(np.nanmean([ages[i] for step in self.steps for i in step])), watched)
        self.round = self.logged_round = index

    def _open_round(self, index: int) -> tuple[bool, Round]:
        """(whether it is new, the round): read from its file, or rolled out and not written yet."""
        try:
            return False, ranks.on_main(lambda: self.rounds.read(index))
        except ArtifactError:
            if self.logged_round == index:
                raise
        if self.rounds.path(index).exists():
            self.run.note(f"{self.rounds.path(index)} was damaged before the policy trained on it: made again")
        return True, self.roll_out.make(index, self.model, self.reference)

    def _given(self, buffer: list[Round], found: Round, pairs: list[PairRows]) -> Given:
        """What the objective needs to know of the buffer's pairs and of the corpus pairs behind them."""
        ref = self._logps(self.reference, pairs) if self.objective.needs("ref") else None
        consistency_B = None
        if self.settings.consistency != "none":
            own = [part.consistency for part in buffer for _ in part.pairs]
            consistency_B = torch.tensor([*own, *(1.0 for _ in range(len(pairs) - len(own)))])
        return Given(ref, found.previous_logps(), consistency_B=consistency_B)

    def _logps(self, model: torch.nn.Module, pairs: list[PairRows]) -> PairLogps:
        with self.run.autocast():
            return pair_logps(model, pairs, self.run.device)

    def _plan(self, index: int) -> list[list[int]]:
        """Pair indices of the round's steps, as many in every round."""
        batch_size = self.settings.batch_size
        steps = plan_steps(
            self.table.lengths,
            batch_size=batch_size,
            epochs=self.round_steps * batch_size / len(self.table.pairs),
            bucket_batches=self.settings.length_bucket_batches,
            seed=self.run.seed("dpo_iterative/order", index),
        )
        return (steps + steps[: self.round_steps - len(steps)])[: self.round_steps]

    @property
    def ended(self) -> bool:
        return self.monitor.stopped is not None

    def _watch(self, found: Round) -> dict[str, float]:
        """Show a round's samples to the monitor once; it may raise β from this round on, or end training."""
        if self.logged_round >= found.index or not found.watched:
            return {}
        metrics = self.monitor.see(found.watched)
        self._leash()
        return metrics

    def _leash(self) -> None:
        """β as the monitor has raised it."""
        beta = self.run.config.algorithm.beta
        if beta and self.monitor.factor != 1:
            self.settings = replace(self.settings, beta=beta * self.monitor.factor)

    def _log(self, found: Round, staleness: float, watched: dict[str, float]) -> None:
        index = found.index
        self.staleness = [*self.staleness[: index - 1], staleness]
        if self.logged_round < index:
            step, pairs = (index - 1) * self.round_steps, len(self.table.pairs)
            self.run.log(step, round=index, staleness=staleness, buffer_pairs=pairs, **found.metrics, **watched)

    def _corpus_pairs(self, index: int, on_policy: int) -> list[PairRows]:
        """Corpus pairs that join a buffer of `on_policy` pairs, drawn anew each round."""
        fraction, corpus = self.settings.corpus_fraction, self.run.corpus.train
        wanted = min(round(on_policy * fraction / (1 - fraction)), len(corpus))
        generator = torch.Generator().manual_seed(self.run.seed("dpo_iterative/corpus", index))
        chosen = [corpus[i] for i in torch.randperm(len(corpus), generator=generator)[:wanted].tolist()]
        encoder = replace(self.encoder, counts={})  # a resumed run encodes these again: they must not count twice
        return [pair_rows(encoder, pair, self.max_length) for pair in chosen]

    def _window(self) -> int:
        return {"current": 1, "rolling": self.settings.window, "full": self.settings.rounds}[self.settings.buffer]

    def state_dict(self) -> dict[str, Any]:
        return {"staleness": self.staleness, "round": self.round, "monitor": self.monitor.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The round in progress is rebuilt from its file by the next `collect`."""
        self.staleness, self.logged_round = list(state["staleness"]), int(state["round"])
        self.monitor.load_state_dict(state["monitor"])
        self._leash()


def build(settings: IterativeDPO, run: Run) -> IteratedDPO:
    return IteratedDPO(settings, run)
