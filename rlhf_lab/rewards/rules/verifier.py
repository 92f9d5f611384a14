"""The answer key of the data as a reward."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.types import RewardBatch
from rlhf_lab.environments.maths.answers import final_answer, same_answer
from rlhf_lab.rewards.rules.settings import Verifier
from rlhf_lab.training.run import Run


class VerifierReward:
    """Scores a reply by its final answer. NaN for a prompt that the answer key does not have.

    Args:
        answers: prompt → answer.
        settings: what right, wrong and stated answers are worth.
    """

    def __init__(self, answers: Mapping[str, str], settings: Verifier):
        self.answers = answers
        self.settings = settings

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        """The parts, "correct" and "format", are what each adds to the reward."""
        rows = [self._score_reply(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]
        correct_N, format_N = np.array(rows, dtype=np.float64).reshape(len(rows), 2).T
        return RewardBatch(correct_N + format_N, {"correct": correct_N, "format": format_N})

    def _score_reply(self, prompt: str, response: str) -> tuple[float, float]:
        """(what the answer is worth, the bonus for stating one)."""
        if prompt not in self.answers:
            return math.nan, math.nan
        stated = final_answer(response, lenient=self.settings.lenient)
        if stated is None:
            return self.settings.wrong, 0.0
        right = same_answer(stated, self.answers[prompt])
        return self.settings.right if right else self.settings.wrong, self.settings.format_bonus


def build(settings: Verifier, run: Run) -> VerifierReward:
    if not run.corpus.answers:
        raise ConfigError(
            f"reward=verifier: data={run.corpus.name} has no answers to check; use data=arithmetic or data=gsm8k"
        )
    return VerifierReward(run.corpus.answers, settings)
