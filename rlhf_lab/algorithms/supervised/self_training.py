"""Self-training in rounds: sample, accept by reward, fine-tune on what was accepted (B-STaR, arXiv:2412.17256).

Before a round, every candidate temperature is tried on some prompts. Their samples say for every threshold how many
right solutions would be found (exploration) and which fraction of the selection would be right (exploitation).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import nn

from rlhf_lab.algorithms.supervised.self_training_settings import SelfTraining
from rlhf_lab.core.arrays import BoolArray, FloatArray
from rlhf_lab.core.episodes import Episode
from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.evaluations.evaluator import Evaluator
from rlhf_lab.models.encoding import Row, TokenBatch
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.rewards.graph import build_reward
from rlhf_lab.sampling.episodes import EpisodeCollector
from rlhf_lab.statistics.repeated_samples import balance_score
from rlhf_lab.training.batching import micro_batches, plan_steps
from rlhf_lab.training.loop import Algorithm, LossOutput, StepBatch
from rlhf_lab.training.run import Result, Run
from rlhf_lab.training.start import corpus_report, load_policy_twice, model_size


@dataclass(frozen=True)
class ScoredSamples:
    """Scored samples of some prompts, prompt-major.

    Attributes:
        groups: episodes of each prompt.
        scores_N: reward of each episode; NaN, or no end of the response, is never accepted.
        right_N: True for each episode with the right answer.
    """

    groups: list[list[Episode]]
    scores_N: FloatArray
    right_N: BoolArray

    def accepted(self, threshold: float) -> BoolArray:
        """Return True for each episode whose reward reaches the threshold, (N,)."""
        finished_N = np.array([episode.finished for group in self.groups for episode in group])
        return finished_N & (self.scores_N >= threshold)  # NaN compares as False

    def distinct(self, mask_N: BoolArray) -> list[list[int]]:
        """Return for each prompt the indices of the masked episodes, with only the first of equal responses."""
        indices = []
        start = 0
        for group in self.groups:
            first: dict[str, int] = {}
            for i, episode in enumerate(group, start):
                if mask_N[i]:
                    first.setdefault(episode.response, i)
            indices.append(list(first.values()))
            start += len(group)
        return indices

    def balance(self, threshold: float, target: int) -> float:
        """Return the balance score of the selection at a threshold."""
        selected = self.distinct(self.accepted(threshold))
        right = [sum(bool(self.right_N[i]) for i in prompt) for prompt in selected]
        return balance_score(right, [len(prompt) for prompt in selected], target)

    def metrics(self, threshold: float, target: int) -> dict[str, float]:
        """Return exploration and exploitation at a threshold."""
        accepted_N = self.accepted(threshold)
        selected = list(chain.from_iterable(self.distinct(accepted_N)))
        distinct_right = self.distinct(self.right_N)
        return {
            "reward_threshold": threshold,
            "balance": self.balance(threshold, target),
            "explored": float(np.mean([bool(prompt) for prompt in distinct_right])),
            "distinct_right": float(np.mean([len(prompt) for prompt in distinct_right])),
            "accepted": float(accepted_N.mean()),
            "precision": float(self.right_N[selected].mean()) if selected else float("nan"),
            "agreement": float((accepted_N == self.right_N).mean()),
        }


class SelfTrainer(Algorithm):
    """Rounds on the policy's own accepted solutions. Path of a batch: `collect` → `_start_round` → `_batch`."""

    settings: SelfTraining

    def __init__(self, settings: SelfTraining, run: Run):
        self.settings, self.run = settings, run
        self.model, self.reference, self.encoder = load_policy_twice(run)
        reward = build_reward(run)
        if reward is None:
            raise ConfigError("needs.reward is not set, but algorithm=self_training accepts by it; set it")
        self.reward = reward
        self.evaluator = Evaluator(run, self.reference, self.encoder, reward, None, settings.max_length)
        self.collector = EpisodeCollector(run, self.encoder)
        self.total_steps = settings.rounds * settings.steps_per_round
        self.round = 0
        self.rows: list[Row] = []  # accepted solutions of the current round
        self.history: list[dict[str, float]] = []  # metrics of each round

    def frozen_modules(self) -> list[nn.Module]:
        return [self.reference]

    def collect(self, step: int) -> StepBatch:
        index = step // self.settings.steps_per_round + 1
        if index != self.round:
            self._start_round(index)
        lengths = [len(prompt) + len(response) for prompt, response in self.rows]
        steps = plan_steps(
            lengths,
            batch_size=self.settings.batch_size,
            # enough passes over the rows for all steps of the round
            epochs=self.settings.steps_per_round * self.settings.batch_size / len(lengths),
            bucket_batches=self.settings.length_bucket_batches,
            seed=self.run.seed("self_training/order", index),
        )
        indices = steps[step % self.settings.steps_per_round]
        splits = micro_batches(indices, lengths, self.settings.micro_batch_tokens)
        batches = [TokenBatch.from_rows([self.rows[i] for i in split], self.run.device) for split in splits]
        return StepBatch(batches, units=sum(len(self.rows[i][1]) for i in indices))

    def loss(self, micro: TokenBatch) -> LossOutput:
        return LossOutput(-token_logps(self.model, micro).logps_N)

    def evaluation_due(self, step: int) -> bool:
        return (step + 1) % self.settings.steps_per_round == 0

    def evaluate(self, step: int) -> None:
        self.evaluator.evaluate_reference()
        self.evaluator.evaluate(f"round {(step + 1) // self.settings.steps_per_round}", self.model)

    def finish(self) -> Result:
        metrics: dict[str, Any] = {**model_size(self.model), **corpus_report(self.run.corpus, self.encoder)}
        for index, values in enumerate(self.history, 1):
            metrics |= {f"{name}/round {index}": value for name, value in values.items()}
        return Result(self.evaluator.policies, metrics)

    def _start_round(self, index: int) -> None:
        """Choose temperature and threshold, sample, and keep the distinct accepted solutions."""
        settings = self.settings
        temperature, threshold = self._choose(index)
        samples = self._sample("self_training/samples", index, settings.prompts_per_round, temperature)
        rows = self._accepted_rows(samples, threshold)
        if not rows:
            raise DataError(
                f"round {index}: no solution has a reward of {threshold} or more; lower algorithm.thresholds, or raise "
                "algorithm.samples_per_prompt"
            )
        self.rows = rows
        values = {"sampling_temperature": temperature, **samples.metrics(threshold, settings.target)}
        self.history = [*self.history[: index - 1], values]
        self.run.log((index - 1) * settings.steps_per_round, round=index, rows=len(rows), **values)
        self.round = index

    def _choose(self, index: int) -> tuple[float, float]:
        """Return the temperature and threshold with the highest balance score on samples of `probe_prompts` prompts."""
        settings = self.settings
        if len(settings.temperatures) == len(settings.thresholds) == 1:
            return settings.temperatures[0], settings.thresholds[0]
        scores: dict[tuple[float, float], float] = {}
        for temperature in settings.temperatures:
            samples = self._sample("self_training/probe", index, settings.probe_prompts, temperature)
            for threshold in settings.thresholds:
                scores[temperature, threshold] = samples.balance(threshold, settings.target)
        return max(scores, key=lambda candidate: scores[candidate])

    def _sample(self, purpose: str, index: int, count: int, temperature: float) -> ScoredSamples:
        """Sample and score solutions of random training prompts; every temperature gets the same prompts."""
        prompts = self.run.corpus.prompts("train")
        generator = torch.Generator().manual_seed(self.run.seed(f"{purpose}/prompts", index))
        chosen = torch.randperm(len(prompts), generator=generator)[:count].tolist()
        tasks = [self.run.corpus.task(prompts[i]) for i in chosen]
        groups = self.collector.collect(
            self.model,
            tasks,
            self.settings.samples_per_prompt,
            self.run.seed(purpose, index),
            temperature=temperature,
        )
        episodes = list(chain.from_iterable(groups))
        right_N = self.run.measure_samples(episodes)["correct"] == 1
        return ScoredSamples(groups, self.reward(episodes).total_N, right_N)

    def _accepted_rows(self, samples: ScoredSamples, threshold: float) -> list[Row]:
        """Return the token rows of the distinct accepted solutions."""
        episodes: Sequence[Episode] = list(chain.from_iterable(samples.groups))
        indices = chain.from_iterable(samples.distinct(samples.accepted(threshold)))
        return [(episodes[i].prompt_ids, episodes[i].token_ids) for i in indices]

    def state_dict(self) -> dict[str, Any]:
        # the samples of a round are part of the state, because its first step changes the policy that sampled them
        return {"round": self.round, "rows": [list(row) for row in self.rows], "history": self.history}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.round = int(state["round"])
        self.rows = [(prompt, response) for prompt, response in state["rows"]]
        self.history = list(state["history"])


def build(settings: SelfTraining, run: Run) -> SelfTrainer:
    return SelfTrainer(settings, run)
