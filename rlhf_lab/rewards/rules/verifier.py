"""The answer key of the data as a reward."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.types import RewardBatch
from rlhf_lab.environments.maths.answers import same_answer, stated_like
from rlhf_lab.rewards.rules.settings import VerifierTerm
from rlhf_lab.training.run import Run


class AnswerKeyReward:
    """Reward that compares the final answer of a response with the answer key. NaN for a prompt without an answer.

    Args:
        answers: prompt → answer.
    """

    def __init__(self, answers: Mapping[str, str], settings: VerifierTerm):
        self.answers = answers
        self.settings = settings

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        """Score responses. The parts "correct" and "format" add up to the reward."""
        rows = [self._score_response(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]
        # `reshape` keeps two columns even if there are no responses.
        correct_N, format_N = np.array(rows, dtype=np.float64).reshape(len(rows), 2).T
        return RewardBatch(correct_N + format_N, {"correct": correct_N, "format": format_N})

    def _score_response(self, prompt: str, response: str) -> tuple[float, float]:
        if prompt not in self.answers:
            return math.nan, math.nan
        answer = self.answers[prompt]
        stated = stated_like(answer, response, lenient=self.settings.lenient)
        if stated is None:
            return self.settings.wrong, 0.0
        # The bonus rewards the format, so a wrong answer in the right format also gets it.
        right = same_answer(stated, answer)
        return self.settings.right if right else self.settings.wrong, self.settings.format_bonus


def build(settings: VerifierTerm, run: Run) -> AnswerKeyReward:
    """Return the reward of the settings. Raise ConfigError if the data have no answers."""
    if not run.corpus.answers:
        raise ConfigError(
            f"reward=verifier: data={run.corpus.name} has no answers to check; use data=arithmetic or data=gsm8k"
        )
    return AnswerKeyReward(run.corpus.answers, settings)
