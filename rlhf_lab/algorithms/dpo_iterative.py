"""Iterative DPO: roll out, rank, pair, train, evaluate, and again with the new policy.

A round's pairs are written to rounds/ when they are made, so a resumed run trains on the very same ones. All rounds
take the same number of steps; a buffer decides which rounds' pairs those steps draw from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from rlhf_lab import registry
from rlhf_lab.algorithms.common import PairRows, corpus_report, pair_logps, pair_rows
from rlhf_lab.algorithms.dpo import (
    REFERENCE_NAME,
    PairTable,
    build_evaluator,
    load_policy_twice,
    preference_step,
)
from rlhf_lab.algorithms.settings import IterativeDPO
from rlhf_lab.errors import ArtifactError, ConfigError, DataError
from rlhf_lab.files import read_json, write_json
from rlhf_lab.losses.preference import PairLogps
from rlhf_lab.models.build import load_policy
from rlhf_lab.train.batching import plan_steps
from rlhf_lab.train.loop import Algorithm, LossOutput, StepBatch
from rlhf_lab.train.run import Result, Run

METRICS = {
    "round": "round of roll out and training, from 1",
    "pairs": "pairs made in the round",
    "prompts_cut": "prompts of the round that lost their beginning to rollout.max_prompt_tokens",
    "ties": "prompts without a pair: all samples equal in reward or text",
    "reward_best": "mean reward of the chosen replies",
    "reward_worst": "mean reward of the rejected replies",
    "pair_gold_agreement": "share of the round's pairs whose chosen reply also has the higher gold, ties half",
    "staleness": "mean age in rounds of the trained pairs that a policy sampled; 0 is on-policy",
    "buffer_pairs": "pairs the round draws from",
}


@dataclass
class RoundPairs:
    """Pairs made from one round's samples, as token rows."""

    round: int
    pairs: list[PairRows]


class IteratedDPO(Algorithm):
    """See the module's first lines; one batch's way: `collect` → `_start_round` → `_roll_out` → `PairTable.batch`."""

    def __init__(self, settings: IterativeDPO, run: Run):
        self.settings, self.run = settings, run
        self.model, self.reference, self.encoder = load_policy_twice(run)
        self.evaluator = build_evaluator(run, self.reference, self.encoder, settings)
        if self.evaluator.reward is None:
            raise ConfigError("needs.reward is not set; algorithm=dpo_iterative ranks by it (or use reward=gold)")
        self.reward = self.evaluator.reward
        self.sampler = registry.build("rollout", run.config.rollout, self.encoder)
        batch_size = settings.batch_size or 16
        round_pairs = settings.prompts_per_round / (1 - settings.corpus_fraction)
        self.round_steps = max(1, math.ceil(settings.updates_per_pair * round_pairs / batch_size))
        self.total_steps = settings.rounds * self.round_steps
        self.round = self.logged_round = 0
        self.staleness: list[float] = []

    def collect(self, step: int) -> StepBatch:
        round_index = step // self.round_steps + 1
        if round_index != self.round:
            self._start_round(round_index)
        return self.table.batch(self.steps[step % self.round_steps], self.settings.micro_batch_tokens)

    def loss(self, micro: tuple[list[PairRows], PairLogps]) -> LossOutput:
        return preference_step(self.model, *micro, self.settings, self.run.device)

    def due(self, step: int) -> bool:
        return (step + 1) % self.round_steps == 0

    def evaluate(self, step: int) -> None:
        self.evaluator.evaluate(REFERENCE_NAME, self.reference)
        self.evaluator.evaluate(f"iteration {(step + 1) // self.round_steps}", self.model)

    def finish(self) -> Result:
        baseline = self.run.needs.get("baseline")
        if baseline:
            model = load_policy(baseline, self.run.config.model, device=self.run.device)
            self.evaluator.evaluate("one-pass DPO", model)
        order = {REFERENCE_NAME: 0, "one-pass DPO": 1}
        policies = sorted(self.evaluator.policies, key=lambda p: order.get(p["name"], 2))
        metrics = {"staleness": float(np.mean(self.staleness)), **corpus_report(self.run.corpus, self.encoder)}
        rounds = [read_json(self._round_path(r))["metrics"] for r in range(1, self.settings.rounds + 1)]
        for key in ("pair_gold_agreement", "ties"):
            if all(key in values for values in rounds):
                metrics |= {f"{key}/round {i}": values[key] for i, values in enumerate(rounds, 1)}
        return Result(policies, metrics)

    def _start_round(self, index: int) -> None:
        """Make or read the round's pairs, fill the buffer, plan the round's steps."""
        if not self._round_path(index).exists():
            if self.logged_round == index:
                raise ArtifactError(
                    f"{self._round_path(index)} is gone, and the policy has trained on it; rebuild the run "
                    "with artifacts.refresh=true"
                )
            write_json(self._round_path(index), self._roll_out(index))
        kept = range(max(1, index - self._window() + 1), index + 1)
        buffer = [RoundPairs(r, _rows(read_json(self._round_path(r))["pairs"])) for r in kept]
        pairs = [pair for part in buffer for pair in part.pairs]
        if not pairs:
            raise DataError(
                f"round {index}: no prompt gave two replies of different reward; raise algorithm.samples_per_prompt or "
                "rollout.temperature"
            )
        corpus = self._corpus_pairs(index, len(pairs))
        ages = np.array([*(index - part.round for part in buffer for _ in part.pairs), *(math.nan for _ in corpus)])
        pairs += corpus
        self.table = PairTable(pairs, pair_logps(self.reference, pairs, self.run.device), self.run.device)
        batch_size = self.settings.batch_size or 16
        self.steps = plan_steps(
            self.table.lengths,
            batch_size=batch_size,
            epochs=self.round_steps * batch_size / len(pairs),
            bucket_batches=self.settings.length_bucket_batches,
            seed=self.run.seed("dpo_iterative/order", index),
        )
        self.steps += self.steps[: self.round_steps - len(self.steps)]
        used = [ages[i] for step in self.steps[: self.round_steps] for i in step]
        self.staleness = [*self.staleness[: index - 1], float(np.nanmean(used))]
        metrics = read_json(self._round_path(index))["metrics"]
        if self.logged_round < index:
            step = (index - 1) * self.round_steps
            self.run.log(step, round=index, staleness=self.staleness[-1], buffer_pairs=len(pairs), **metrics)
        self.round = self.logged_round = index

    def _corpus_pairs(self, index: int, on_policy: int) -> list[PairRows]:
        """Corpus pairs that join a buffer of `on_policy` pairs, drawn anew each round."""
        fraction, corpus = self.settings.corpus_fraction, self.run.corpus.train
        wanted = min(round(on_policy * fraction / (1 - fraction)), len(corpus))
        generator = torch.Generator().manual_seed(self.run.seed("dpo_iterative/corpus", index))
        chosen = [corpus[i] for i in torch.randperm(len(corpus), generator=generator)[:wanted].tolist()]
        encoder = replace(self.encoder, counts={})  # a resumed run encodes these again: they must not count twice
        return [pair_rows(encoder, pair, self.settings.max_length or 512) for pair in chosen]

    def _window(self) -> int:
        return {"current": 1, "rolling": self.settings.window, "full": self.settings.rounds}[self.settings.buffer]

    def _round_path(self, index: int) -> Any:
        folder = self.run.folder / "rounds"
        folder.mkdir(exist_ok=True)
        return folder / f"round_{index}.json"

    def _roll_out(self, index: int) -> dict[str, Any]:
        """Sample G replies per prompt, score them, pair the best with the worst."""
        settings, group = self.settings, self.settings.samples_per_prompt
        everything = self.run.corpus.prompts("train")
        generator = torch.Generator().manual_seed(self.run.seed("dpo_iterative/prompts", index))
        chosen = torch.randperm(len(everything), generator=generator)[: settings.prompts_per_round].tolist()
        prompts = [everything[i] for i in chosen]
        encoder = replace(self.encoder, counts={})  # a resumed run does not roll out again: counted in the round's file
        ids = [encoder.prompt(p, self.run.config.rollout.max_prompt_tokens) for p in prompts]
        samples = self.sampler.sample(self.model, ids, group, self.run.seed("dpo_iterative/rollout", index))
        texts = [self.encoder.text(reply) for replies in samples.replies_BG for reply in replies]
        repeated = [prompt for prompt in prompts for _ in range(group)]
        scores_BG = self.reward(repeated, texts).total_N.reshape(len(prompts), group)
        pairs, picked = [], []
        for b, scores_G in enumerate(scores_BG):
            if np.isnan(scores_G).all() or np.nanmax(scores_G) == np.nanmin(scores_G):
                continue
            best, worst = int(np.nanargmax(scores_G)), int(np.nanargmin(scores_G))
            pairs.append([samples.prompts[b], samples.replies_BG[b][best], samples.replies_BG[b][worst]])
            picked.append((b * group + best, b * group + worst))
        metrics = self._round_metrics(len(prompts), scores_BG, picked, repeated, texts)
        metrics["prompts_cut"] = float(sum(encoder.counts.values()))
        return {"metrics": metrics, "pairs": pairs}

    def _round_metrics(
        self, prompts: int, scores_BG: np.ndarray, picked: list[tuple[int, int]], repeated: list[str], texts: list[str]
    ) -> dict[str, float]:
        best, worst = [i for i, _ in picked], [i for _, i in picked]
        flat = scores_BG.reshape(-1)
        metrics = {
            "pairs": float(len(picked)),
            "ties": float(prompts - len(picked)),
            "reward_best": float(flat[best].mean()),
            "reward_worst": float(flat[worst].mean()),
        }
        if self.run.corpus.oracle is not None:
            gold = self.run.corpus.oracle.measure(repeated, texts)["gold"]
            metrics["pair_gold_agreement"] = float(np.mean(np.sign(gold[best] - gold[worst]) / 2 + 0.5))
        return metrics

    def state_dict(self) -> dict[str, Any]:
        return {"staleness": self.staleness, "round": self.round}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The round in progress is rebuilt from its file by the next `collect`."""
        self.staleness, self.logged_round = list(state["staleness"]), int(state["round"])


def _rows(pairs: list[list[list[int]]]) -> list[PairRows]:
    return [((prompt, chosen), (prompt, rejected)) for prompt, chosen, rejected in pairs]


def build(settings: IterativeDPO, run: Run) -> IteratedDPO:
    return IteratedDPO(settings, run)
