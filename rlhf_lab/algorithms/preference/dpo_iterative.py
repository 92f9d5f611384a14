"""Iterative DPO: roll out, rank, pair, train and evaluate, repeated with the new policy.

The pairs of a round are written to rounds/ when they are created (`rounds.py`), so a resumed run trains on exactly the
same pairs. All rounds have the same number of steps; a buffer determines which rounds' pairs are sampled.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from rlhf_lab.algorithms.preference.dpo import PairContext, PairTable, PreferenceAlgorithm
from rlhf_lab.algorithms.preference.rounds import RollOut, Round, RoundFiles
from rlhf_lab.algorithms.preference.settings import IterativeDPO
from rlhf_lab.core import ranks
from rlhf_lab.core.errors import ArtifactError, ConfigError, DataError
from rlhf_lab.evaluations.evaluator import CERTIFIED_NAME, REFERENCE_NAME, SOUP_NAME
from rlhf_lab.losses.preference import PairLogps
from rlhf_lab.models.build import load_policy
from rlhf_lab.models.pair_rows import PairRows, pair_logps, pair_rows
from rlhf_lab.monitoring.audit import Auditor
from rlhf_lab.monitoring.monitor import Watch
from rlhf_lab.sampling.episodes import EpisodeCollector
from rlhf_lab.training.batching import plan_steps
from rlhf_lab.training.loop import StepBatch
from rlhf_lab.training.run import Result, Run
from rlhf_lab.training.start import corpus_report, model_size


class IteratedDPO(PreferenceAlgorithm):
    """Rounds on the policy's own responses.

    Path of a batch: `collect` → `_start_round` → `RollOut.make` → `PairTable.batch`.
    """

    settings: IterativeDPO

    def __init__(self, settings: IterativeDPO, run: Run):
        super().__init__(settings, run)
        if self.evaluator.reward is None:
            raise ConfigError(
                "needs.reward is not set, but algorithm=dpo_iterative ranks by it; set it, or use reward=gold"
            )
        self.reward = self.evaluator.reward
        collector = EpisodeCollector(run, self.encoder)
        # A run has few rounds with many samples each: the first is the monitor's baseline, all others are judged.
        self.monitor = Watch(run, settings.rounds, every=1, warmup=1)
        self.audit = Auditor(run, self.model, self.reference, collector, settings.rounds)
        self.rounds = RoundFiles(run)
        self.roll_out = RollOut(settings, run, collector, self.reward, self.monitor)
        # Counts prompts instead of pairs (ties give no pair), so that every round has the same number of steps.
        available = len(run.corpus.prompts("train"))
        if available < settings.prompts_per_round:
            run.note(
                f"algorithm.prompts_per_round={settings.prompts_per_round}: there are {available} training prompts"
            )
        round_pairs = min(settings.prompts_per_round, available) / (1 - settings.corpus_fraction)
        # rounded, because 640 prompts at a corpus fraction of 0.8 are 100.00000000000003 batches of 32
        batches = round(settings.updates_per_pair * round_pairs / settings.batch_size, 9)
        self.round_steps = max(1, math.ceil(batches))
        self.total_steps = settings.rounds * self.round_steps
        self.round = self.logged_round = 0
        self.staleness: list[float] = []

    def collect(self, step: int) -> StepBatch:
        round_index = step // self.round_steps + 1
        if round_index != self.round:
            self._start_round(round_index)
        if self.finished:
            return StepBatch([], units=1)  # the loop makes no update if there is no micro-batch
        return self.batch(self.table, self.steps[step % self.round_steps])

    def evaluation_due(self, step: int) -> bool:
        return (step + 1) % self.round_steps == 0 and not self.finished

    def evaluate(self, step: int) -> None:
        self.evaluator.evaluate_reference()
        self.evaluator.evaluate(f"iteration {(step + 1) // self.round_steps}", self.model)

    def finish(self) -> Result:
        if self.audit.on and not self.finished:  # the last round is only audited here
            self.run.log(self.total_steps, **self.audit.check(self.settings.rounds, final=True))
        if self.audit.stopped is not None:  # the result is no longer the model of the last round
            self.audit.restore_certified()
            self.evaluator.evaluate_reference()
            self.evaluator.evaluate(CERTIFIED_NAME, self.model)
        baseline = self.run.needs.get("baseline")
        if baseline:
            self.run.await_need("baseline")
            model = load_policy(baseline, self.run.config.model, device=self.run.device)
            self.evaluator.evaluate(self.settings.evidence.baseline_policy, model)
        first = (SOUP_NAME, REFERENCE_NAME, self.settings.evidence.baseline_policy)
        order = {name: index for index, name in enumerate(first)}
        policies = sorted(self.evaluator.policies, key=lambda p: order.get(p["name"], len(first)))
        # the policy of a round was trained on the samples of that many rounds
        rounds = {f"iteration {index}": index for index in range(1, len(self.staleness) + 1)}
        metrics = {
            "staleness": float(np.mean(self.staleness)),
            **model_size(self.model),
            **corpus_report(self.run.corpus, self.encoder),
            **self.monitor.totals(self.evaluator.gold_truth(rounds)),
            **self.audit.totals(),
        }
        # `staleness` has one value per completed round.
        completed = range(1, len(self.staleness) + 1)
        metrics_of_rounds = [self.rounds.read(index).metrics for index in completed]
        for key in ("pair_gold_agreement", "ties", "consistency"):
            if all(key in round_metrics for round_metrics in metrics_of_rounds):
                for i, round_metrics in enumerate(metrics_of_rounds, 1):
                    metrics[f"{key}/round {i}"] = round_metrics[key]
        return Result(policies, metrics)

    def _start_round(self, index: int) -> None:
        """Create or read the round's pairs, fill the buffer and plan the steps of the round."""
        if self.finished:
            return
        is_new, current = self._open_round(index)
        monitor_metrics = self._monitor_samples(current)
        # The first round starts from the start policy; a round that was resumed has been audited before.
        if index > 1 and self.logged_round < index and not self.finished:
            monitor_metrics |= self.audit.check(index - 1)
        if self.finished:  # monitor or audit stopped training: record the round without training on it
            self.rounds.write(current)
            self.run.log((index - 1) * self.round_steps, round=index, **current.metrics, **monitor_metrics)
            self.round = self.logged_round = index
            return
        oldest = max(1, index - self._rounds_in_buffer() + 1)
        earlier = [self.rounds.read(earlier_index) for earlier_index in range(oldest, index)]
        buffer = [*earlier, current]
        sampled_pairs = [pair for buffered in buffer for pair in buffered.rows()]
        if not sampled_pairs:
            raise DataError(
                f"round {index}: no prompt has two responses with different rewards; raise "
                "algorithm.samples_per_prompt or rollout.temperature"
            )
        corpus_pairs = self._draw_corpus_pairs(index, len(sampled_pairs))
        pairs = sampled_pairs + corpus_pairs
        if is_new:
            # Written before the first step of the round, because that step changes the policy that sampled the pairs
            # and that `previous` refers to.
            if self.objective.needs("previous"):
                current.previous = [side.tolist() for side in self._pair_logps(self.model, pairs)]
            self.rounds.write(current)
        self.table = PairTable(pairs, self._precompute(buffer, current, pairs), self.run.device)
        self.steps = self._plan_steps(index)
        sampled_ages = [index - buffered.index for buffered in buffer for _ in buffered.pairs]
        corpus_ages = [math.nan] * len(corpus_pairs)  # not sampled by a policy of this run, so `nanmean` ignores them
        ages = np.array([*sampled_ages, *corpus_ages])
        trained_ages = [ages[i] for step in self.steps for i in step]
        staleness = float(np.nanmean(trained_ages))
        self._log_round(current, staleness, monitor_metrics)
        self.round = self.logged_round = index

    def _open_round(self, index: int) -> tuple[bool, Round]:
        """Read a round from its file, or sample a new one. Return (True if it is new and not yet written, round)."""
        try:
            return False, ranks.on_main(lambda: self.rounds.read(index))
        except ArtifactError:
            # A checkpoint inside the round contains a policy that has trained on exactly these pairs, and new samples
            # would give other pairs. Before the first step, the policy is still that at the start of the round.
            if self.logged_round == index:
                raise
        if self.rounds.path(index).exists():
            self.run.note(
                f"{self.rounds.path(index)} was damaged before the policy trained on it; its pairs are sampled again"
            )
        return True, self.roll_out.make(index, self.model, self.reference)

    def _precompute(self, buffer: list[Round], current: Round, pairs: list[PairRows]) -> PairContext:
        """Return the objective's inputs for all pairs of a round: pairs of the buffer, then pairs of the corpus."""
        ref = self._pair_logps(self.reference, pairs) if self.objective.needs("ref") else None
        consistency_B = None
        if self.settings.consistency != "none":
            sampled = [buffered.consistency for buffered in buffer for _ in buffered.pairs]
            # CREAM's consistency concerns labels by the reward. The corpus has other labels, so its weight stays 1.
            corpus = [1.0] * (len(pairs) - len(sampled))
            consistency_B = torch.tensor([*sampled, *corpus])
        return PairContext(ref, current.previous_logps(), consistency_B=consistency_B)

    def _pair_logps(self, model: torch.nn.Module, pairs: list[PairRows]) -> PairLogps:
        with self.run.autocast():
            return pair_logps(model, pairs, self.run.device, self.codebooks)

    def _plan_steps(self, index: int) -> list[list[int]]:
        """Return the pair indices of the round's steps; their number is the same in every round."""
        batch_size = self.settings.batch_size
        steps = plan_steps(
            self.table.lengths,
            batch_size=batch_size,
            epochs=self.round_steps * batch_size / len(self.table.pairs),
            bucket_batches=self.settings.length_bucket_batches,
            seed=self.run.seed("dpo_iterative/order", index),
        )
        return steps[: self.round_steps]  # the smaller last batches of epochs make them more

    @property
    def finished(self) -> bool:
        return self.monitor.stopped is not None or self.audit.stopped is not None

    @property
    def pause(self) -> str:
        return self.monitor.pause or self.audit.pause

    def _monitor_samples(self, current: Round) -> dict[str, float]:
        """Pass the samples of a round to the monitor once; it may raise β from this round on, or stop training."""
        if self.logged_round >= current.index or not current.watched:
            return {}
        metrics = self.monitor.see(current.watched)
        self._apply_raised_beta()
        return metrics

    def _apply_raised_beta(self) -> None:
        """Multiply the configured β by the monitor's factor. Starting from the config's β makes this idempotent."""
        beta = self.run.config.algorithm.beta
        if beta and self.monitor.factor != 1:
            self.settings = replace(self.settings, beta=beta * self.monitor.factor)

    def _log_round(self, current: Round, staleness: float, monitor_metrics: dict[str, float]) -> None:
        index = current.index
        self.staleness = [*self.staleness[: index - 1], staleness]
        if self.logged_round >= index:  # a run resumed inside the round has already logged this row
            return
        self.run.log(
            (index - 1) * self.round_steps,
            round=index,
            staleness=staleness,
            buffer_pairs=len(self.table.pairs),
            **current.metrics,
            **monitor_metrics,
        )

    def _draw_corpus_pairs(self, index: int, sampled_pairs: int) -> list[PairRows]:
        """Sample the corpus pairs that are added to a buffer of `sampled_pairs` pairs, anew in each round."""
        fraction = self.settings.corpus_fraction
        corpus = self.run.corpus.train
        # c corpus pairs and s own pairs have the corpus fraction c / (c + s), solved for c
        count = min(round(sampled_pairs * fraction / (1 - fraction)), len(corpus))
        generator = torch.Generator().manual_seed(self.run.seed("dpo_iterative/corpus", index))
        selected = torch.randperm(len(corpus), generator=generator)[:count].tolist()
        # A separate counter, because a resumed run encodes the pairs again and must not count them twice.
        encoder = self.encoder.uncounted()
        return [pair_rows(encoder, corpus[i], self.max_length) for i in selected]

    def _rounds_in_buffer(self) -> int:
        return {"current": 1, "rolling": self.settings.window, "full": self.settings.rounds}[self.settings.buffer]

    def state_dict(self) -> dict[str, Any]:
        return {
            "staleness": self.staleness,
            "round": self.round,
            "monitor": self.monitor.state_dict(),
            "audit": self.audit.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state; the next `collect` rebuilds the current round from its file."""
        self.staleness = list(state["staleness"])
        self.logged_round = int(state["round"])
        self.monitor.load_state_dict(state["monitor"])
        self.audit.load_state_dict(state["audit"])
        self._apply_raised_beta()


def build(settings: IterativeDPO, run: Run) -> IteratedDPO:
    return IteratedDPO(settings, run)
