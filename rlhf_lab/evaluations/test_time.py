"""Accuracy against tokens spent: one greedy reply, or k samples and a way to choose among them.

One set of N samples per held-out prompt serves every k: accuracies are means over all subsets of k of the N. All
strategies of a seed read the same samples, so a study compares them on the same replies. Tokens are those that the
policy generates; what a verifier reads to choose is not counted, and is about as many.
"""

from __future__ import annotations

import numpy as np

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.types import FloatArray
from rlhf_lab.evaluations.evaluator import REFERENCE_NAME, scored_policy
from rlhf_lab.evaluations.repeated_samples import Rows, by_prompt, read_answers
from rlhf_lab.evaluations.settings import AtTestTime
from rlhf_lab.statistics.best_of_n import best_of_n
from rlhf_lab.statistics.estimates import Estimate, floats
from rlhf_lab.statistics.inference import clustered_mean
from rlhf_lab.statistics.repeated_samples import majority_at_k, pass_at_k
from rlhf_lab.training.run import Result, Run
from rlhf_lab.training.start import corpus_report


class ChoosingAtTestTime:
    """Samples once, then measures one strategy at every k."""

    def __init__(self, settings: AtTestTime, run: Run):
        self.settings, self.run = settings, run
        missing = "a role of the reward is not set in needs; algorithm=test_time chooses by it (reward=orm)"
        scored = scored_policy(run, missing)
        self.model, self.encoder, self.evaluator = scored.model, scored.encoder, scored.evaluator

    def finish(self) -> Result:
        evaluator, sizes = self.evaluator, self.settings.sizes
        evaluator.evaluate(REFERENCE_NAME, self.model, self.settings.samples)
        prompts = by_prompt(evaluator.rows(REFERENCE_NAME))
        if self.settings.strategy == "greedy":
            accuracy_PK, tokens_P = self._greedy()
            tokens_PK = np.repeat(tokens_P[:, None], len(sizes), axis=1)  # one reply, whatever k is
        else:
            accuracy_PK = np.stack([self._accuracy(replies) for replies in prompts])
            tokens_P = np.array([floats([row["tokens"] for row in replies]).mean() for replies in prompts])
            tokens_PK = tokens_P[:, None] * np.array(sizes, dtype=np.float64)
        metrics = {**_estimates("accuracy", sizes, accuracy_PK), **_estimates("tokens", sizes, tokens_PK)}
        primary = [f"accuracy@{sizes[-1]}", f"tokens@{sizes[-1]}"]
        return Result(evaluator.policies, {**metrics, **corpus_report(self.run.corpus, self.encoder)}, primary)

    def _greedy(self) -> tuple[FloatArray, FloatArray]:
        """(accuracy, the same for every k, (P, K); tokens of the reply, (P,))."""
        evaluator = self.evaluator
        collected = evaluator.collector.collect(
            self.model, evaluator.tasks, 1, 0, temperature=0.0, prompts=evaluator.prompt_ids
        )
        episodes = [episode for (episode,) in collected]
        correct_P = floats(self.run.corpus.measure(episodes)["correct"])
        tokens_P = floats([episode.sampled_tokens for episode in episodes])
        return np.repeat(correct_P[:, None], len(self.settings.sizes), axis=1), tokens_P

    def _accuracy(self, replies: Rows) -> FloatArray:
        """Accuracy at one prompt for every k, (K,)."""
        sizes = self.settings.sizes
        correct_N = floats([row["correct"] for row in replies])
        if self.settings.strategy == "any":
            return pass_at_k(correct_N, sizes)
        if self.settings.strategy == "best_of_n":
            return best_of_n(floats([row["proxy"] for row in replies]), correct_N, sizes)
        answers = read_answers(self.run.data.oracle, replies)
        if answers is None:
            raise ConfigError(
                f"algorithm.strategy=majority: replies to data={self.run.data.name} state no final answer to vote on; "
                "use strategy=best_of_n"
            )
        return majority_at_k(answers, correct_N, sizes)


def _estimates(name: str, sizes: tuple[int, ...], values_PK: FloatArray) -> dict[str, Estimate]:
    prompts = np.arange(len(values_PK))
    return {f"{name}@{k}": clustered_mean(values_PK[:, i], prompts) for i, k in enumerate(sizes)}


def build(settings: AtTestTime, run: Run) -> ChoosingAtTestTime:
    return ChoosingAtTestTime(settings, run)
