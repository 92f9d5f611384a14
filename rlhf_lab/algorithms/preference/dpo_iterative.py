"""Iterative DPO: roll out, rank, pair, train and evaluate, repeated with the new policy.

The pairs of a round are written to rounds/ when they are created, so a resumed run trains on exactly the
same pairs. All rounds have the same number of steps; a buffer determines which rounds' pairs are sampled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from rlhf_lab.algorithms.preference.dpo import PairContext, PairTable, PreferenceAlgorithm
from rlhf_lab.algorithms.preference.settings import IterativeDPO
from rlhf_lab.core import ranks
from rlhf_lab.core.episodes import Episode
from rlhf_lab.core.errors import ArtifactError, DataError
from rlhf_lab.core.files import fingerprint, read_json, write_json
from rlhf_lab.core.types import FloatArray, Reward
from rlhf_lab.evaluations.evaluator import CERTIFIED_NAME, REFERENCE_NAME, SOUP_NAME
from rlhf_lab.losses.preference import PairLogps, consistency_rate
from rlhf_lab.models.build import load_policy
from rlhf_lab.models.pair_rows import PairRows, pair_logps, pair_rows, sequence_logps
from rlhf_lab.monitoring.audit import Auditor
from rlhf_lab.monitoring.monitor import Watch, unverified
from rlhf_lab.sampling.episodes import EpisodeCollector
from rlhf_lab.statistics.estimates import win_or_tie
from rlhf_lab.training.batching import plan_steps
from rlhf_lab.training.loop import StepBatch
from rlhf_lab.training.run import Result, Run
from rlhf_lab.training.start import corpus_report, model_size


@dataclass
class Round:
    """Pairs that one round labelled, and their metrics. All fields except `index` are keys of the round's JSON file.

    Attributes:
        index: index of the round, from 1.
        metrics: metrics of the round (definitions: metrics.py).
        pairs: (prompt, chosen, rejected) token ids of each pair.
        consistency: CREAM's C of these labels; 1 leaves the labels unweighted.
        watched: monitor row over all sampled responses of the round; None if the monitor is off.
        previous: [chosen, rejected] log-probabilities under the policy at the start of the round, over all training
            pairs of the round (the buffer's, then the corpus's); None if the loss does not need them.
    """

    index: int
    metrics: dict[str, float]
    pairs: list[list[list[int]]]
    consistency: float = 1.0
    watched: dict[str, Any] | None = None
    previous: list[list[float]] | None = None

    def rows(self) -> list[PairRows]:
        return [((prompt, chosen), (prompt, rejected)) for prompt, chosen, rejected in self.pairs]

    def previous_logps(self) -> PairLogps | None:
        if self.previous is None:
            return None
        return PairLogps(*(torch.tensor(side) for side in self.previous))


class RoundFiles:
    """rounds/round_<index>.json of a run directory."""

    def __init__(self, run: Run):
        self.directory = run.directory / "rounds"

    def path(self, index: int) -> Path:
        return self.directory / f"round_{index}.json"

    def read(self, index: int) -> Round:
        """Read a round. Raise ArtifactError if the file is missing or differs from what `write` stored."""
        values = read_json(self.path(index))
        digest = values.pop("sha256", None) if isinstance(values, dict) else None
        if digest is None or digest != fingerprint(values):
            state = "damaged" if self.path(index).exists() else "missing"
            raise ArtifactError(
                f"{self.path(index)} is {state}, and the policy has trained on its pairs; restore it from a copy, or "
                f"delete {self.directory.parent} to run the stage again"
            )
        return Round(index, **values)

    def write(self, current: Round) -> None:
        self.directory.mkdir(exist_ok=True)
        values = {"metrics": current.metrics, "pairs": current.pairs, "consistency": current.consistency}
        optional = {"previous": current.previous, "watched": current.watched}
        # Empty fields are omitted, so that they do not change the digest of rounds without them.
        values |= {key: value for key, value in optional.items() if value}
        write_json(self.path(current.index), values | {"sha256": fingerprint(values)})


@dataclass
class RollOut:
    """Sampler of rounds: samples, scores and pairs responses. Contains everything that is the same in all rounds."""

    settings: IterativeDPO
    run: Run
    collector: EpisodeCollector
    reward: Reward
    monitor: Watch

    def make(self, index: int, model: nn.Module, reference: nn.Module) -> Round:
        """Sample G responses per prompt, score them, and pair the best with the worst."""
        settings, group_size = self.settings, self.settings.samples_per_prompt
        all_prompts = self.run.corpus.prompts("train")
        generator = torch.Generator().manual_seed(self.run.seed("dpo_iterative/prompts", index))
        selected = torch.randperm(len(all_prompts), generator=generator)[: settings.prompts_per_round].tolist()
        tasks = [self.run.corpus.task(all_prompts[i]) for i in selected]
        # The round's file stores the number of truncated prompts, because a resumed run does not roll out again.
        cut_before = self.collector.prompts_cut
        collected = self.collector.collect(model, tasks, group_size, self.run.seed("dpo_iterative/rollout", index))
        # Score all responses at once; row b·G + g is response g to prompt b.
        episodes = list(chain.from_iterable(collected))
        rewards = self.reward(episodes)
        scores_BG = rewards.total_N.reshape(len(tasks), group_size)
        ranked = best_and_worst(scores_BG)
        best_worst = [(collected[b][best], collected[b][worst]) for b, best, worst in ranked]
        pairs = [[best.prompt_ids, best.token_ids, worst.token_ids] for best, worst in best_worst]
        metrics = self._metrics(scores_BG, ranked, episodes)
        metrics["prompts_cut"] = float(self.collector.prompts_cut - cut_before)
        consistency = 1.0
        if settings.consistency == "cream":
            consistency = self._consistency_rate(index, scores_BG, episodes, model, reference)
            metrics["consistency"] = consistency
        monitor_row = None
        if self.monitor.on:
            monitor_row = self.monitor.row(episodes, rewards.total_N, unverified(rewards))
        return Round(index, metrics, pairs, consistency, monitor_row)

    def _metrics(
        self, scores_BG: FloatArray, ranked: list[tuple[int, int, int]], episodes: Sequence[Episode]
    ) -> dict[str, float]:
        """Return the metrics of a round. `episodes` are all B·G sampled responses, grouped by prompt."""
        group_size = scores_BG.shape[1]
        best = [b * group_size + i for b, i, _ in ranked]
        worst = [b * group_size + j for b, _, j in ranked]
        scores_N = scores_BG.reshape(-1)
        metrics = {"pairs": float(len(ranked)), "ties": float(len(scores_BG) - len(ranked))}
        if ranked:  # if all prompts tie, there is no best and no worst response
            metrics["reward_best"] = float(scores_N[best].mean())
            metrics["reward_worst"] = float(scores_N[worst].mean())
        gold_N = self.run.measure_samples(episodes).get("gold")
        if ranked and gold_N is not None:
            agreement = win_or_tie(gold_N[best] - gold_N[worst])
            metrics["pair_gold_agreement"] = float(np.nanmean(agreement))
        return metrics

    def _consistency_rate(
        self, index: int, scores_BG: FloatArray, episodes: Sequence[Episode], model: nn.Module, reference: nn.Module
    ) -> float:
        """Return CREAM's C: agreement of the reward's rankings with those of the previous iterate's implicit reward.

        The implicit reward is log π_t − log π_ref of the policy at the start of the round. In the first round this
        policy is the reference, all implicit rewards are 0, and C is set to 1.
        """
        if index == 1:
            return 1.0
        rows = [(episode.prompt_ids, episode.token_ids) for episode in episodes]
        with self.run.autocast():
            implicit_N = sequence_logps(model, rows, self.run.device) - sequence_logps(reference, rows, self.run.device)
        return consistency_rate(torch.from_numpy(scores_BG), implicit_N.reshape(scores_BG.shape))


def best_and_worst(scores_BG: FloatArray) -> list[tuple[int, int, int]]:
    """Return (prompt, best, worst) positions of every prompt whose responses differ in score, without NaN scores."""
    ranked = []
    for b, scores_G in enumerate(scores_BG):
        if np.isnan(scores_G).all():  # nanmax of an empty set would warn
            continue
        if np.nanmax(scores_G) != np.nanmin(scores_G):
            best = int(np.nanargmax(scores_G))
            worst = int(np.nanargmin(scores_G))
            ranked.append((b, best, worst))
    return ranked


class IteratedDPO(PreferenceAlgorithm):
    """Rounds on the policy's own responses.

    Path of a batch: `collect` → `_start_round` → `RollOut.make` → `PairTable.batch`.
    """

    settings: IterativeDPO

    def __init__(self, settings: IterativeDPO, run: Run):
        super().__init__(settings, run)
        assert self.evaluator.reward is not None, "checked with the config"
        self.reward = self.evaluator.reward
        collector = EpisodeCollector(run, self.encoder)
        # A run has few rounds with many samples each: the first is the monitor's baseline, all others are judged.
        self.monitor = Watch(run, settings.rounds, every=1, warmup=1)
        self.audit = Auditor(run, self.model, self.reference, collector, settings.rounds)
        self.rounds = RoundFiles(run)
        self.roll_out = RollOut(settings, run, collector, self.reward, self.monitor)
        # Counts prompts instead of pairs (ties give no pair), so that every round has the same number of steps.
        available = len(run.corpus.prompts("train"))
        wanted = settings.prompts_per_round
        if available < wanted:
            run.note(f"algorithm.prompts_per_round={wanted}: there are {available} training prompts")
        prompts, corpus = min(wanted, available), len(run.corpus.train)
        buffered = prompts * min(self._rounds_in_buffer(), settings.rounds)
        needed = self._wanted_corpus_pairs(buffered)
        if needed > corpus:
            run.note(
                f"algorithm.corpus_fraction={settings.corpus_fraction}: {buffered} own pairs need {needed} "
                f"corpus pairs, and there are {corpus}; all of them are used, "
                f"which are {corpus / (corpus + buffered):.2f} of the pairs"
            )
        round_pairs = min(prompts / (1 - settings.corpus_fraction), prompts + corpus)
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
        # `staleness` has one value per completed round. Its policy was trained on the samples of that many rounds.
        completed = range(1, len(self.staleness) + 1)
        rounds = {f"iteration {index}": index for index in completed}
        metrics = {
            "staleness": float(np.mean(self.staleness)),
            **model_size(self.model),
            **corpus_report(self.run.corpus, self.encoder),
            **self.monitor.totals(self.evaluator.gold_truth(rounds)),
            **self.audit.totals(),
        }
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
        self.round = index
        if self.finished:  # monitor or audit stopped training: record the round without training on it
            self.rounds.write(current)
            self.run.log((index - 1) * self.round_steps, round=index, **current.metrics, **monitor_metrics)
            self.logged_round = index
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
        staleness = float(np.nanmean([ages[i] for step in self.steps for i in step]))
        self.staleness = [*self.staleness[: index - 1], staleness]
        if self.logged_round < index:  # a run resumed inside the round has already logged this row
            self.run.log(
                (index - 1) * self.round_steps,
                round=index,
                staleness=staleness,
                buffer_pairs=len(self.table.pairs),
                **current.metrics,
                **monitor_metrics,
            )
            self.logged_round = index

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
        """Pass the samples of a round to the monitor once; it may stop training."""
        if self.logged_round >= current.index or not current.watched:
            return {}
        return self.monitor.see(current.watched)

    def _draw_corpus_pairs(self, index: int, sampled_pairs: int) -> list[PairRows]:
        """Sample the corpus pairs that are added to a buffer of `sampled_pairs` pairs, anew in each round."""
        corpus = self.run.corpus.train
        count = min(self._wanted_corpus_pairs(sampled_pairs), len(corpus))
        generator = torch.Generator().manual_seed(self.run.seed("dpo_iterative/corpus", index))
        selected = torch.randperm(len(corpus), generator=generator)[:count].tolist()
        # A separate counter, because a resumed run encodes the pairs again and must not count them twice.
        encoder = self.encoder.uncounted()
        return [pair_rows(encoder, corpus[i], self.max_length) for i in selected]

    def _wanted_corpus_pairs(self, sampled_pairs: int) -> int:
        # c corpus pairs and s own pairs have the corpus fraction c / (c + s), solved for c
        fraction = self.settings.corpus_fraction
        return round(sampled_pairs * fraction / (1 - fraction))

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


def build(settings: IterativeDPO, run: Run) -> IteratedDPO:
    return IteratedDPO(settings, run)
