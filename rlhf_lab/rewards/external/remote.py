"""Reward served over HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlhf_lab.core.errors import LabError
from rlhf_lab.core.files import parse_json
from rlhf_lab.core.progress import tracked
from rlhf_lab.core.types import Corpus, FloatArray, RewardBatch
from rlhf_lab.rewards.calling import InvalidScores, RewardFailed, scores
from rlhf_lab.rewards.external.post import post_json
from rlhf_lab.rewards.external.settings import Remote
from rlhf_lab.training.run import Run

GIVE_UP_AFTER = 2
"""Number of consecutive failed requests after which the rest of a call is not sent to the service."""


class RemoteReward:
    """Reward that requests scores from `settings.url`; see `Remote` for the form of request and answer.

    Args:
        references: prompt → answer in the data, with `send_references`.
    """

    def __init__(self, settings: Remote, references: Mapping[str, str] | None = None, pause_s: float = 0.5):
        self.settings = settings
        self.references = references or {}
        self.pause_s = pause_s

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        size = self.settings.batch_size
        batches = [slice(start, start + size) for start in range(0, len(responses), size)]
        rewards = np.full(len(responses), np.nan)
        failures: list[LabError] = []
        failed_in_a_row = 0
        for batch in tracked(batches, "reward service"):
            try:
                rewards[batch] = self._request_rewards(list(prompts[batch]), list(responses[batch]))
                failed_in_a_row = 0
            except LabError as error:
                if self.settings.on_error != "abstain":
                    raise
                failures.append(error)
                # The service answered, so this failure does not count as a missing answer.
                if isinstance(error, InvalidScores):
                    rewards[batch] = error.scores_N
                    continue
                failed_in_a_row += 1
                if failed_in_a_row == GIVE_UP_AFTER:
                    break
        if failures:
            raise RewardFailed(str(failures[0]), rewards) from failures[0]
        return RewardBatch(rewards)

    def _request_rewards(self, prompts: list[str], responses: list[str]) -> FloatArray:
        """Return the service's rewards of one batch, (N,). Raise LabError for an answer of another form."""
        settings = self.settings
        question: dict[str, Any] = {"prompts": prompts, "responses": responses}
        if settings.send_references:
            question["references"] = [self.references.get(prompt) for prompt in prompts]
        body = post_json(
            settings.url,
            question,
            what="reward service",
            retries=settings.retries,
            timeout_s=settings.request_timeout_s,
            pause_s=self.pause_s,
        )
        try:
            content = parse_json(body)
        except ValueError:
            content = body  # not JSON: rejected below with its first characters in the message
        rewards = content.get("rewards") if isinstance(content, dict) else None
        if not isinstance(rewards, list) or len(rewards) != len(responses):
            raise LabError(
                f'reward service {settings.url} answered {str(content)[:100]}; expected {{"rewards": [...]}} with '
                f"{len(responses)} numbers or nulls"
            )
        return scores(rewards, responses, f"reward service {settings.url}")


def references(corpus: Corpus) -> dict[str, str]:
    """Return prompt → its answer in the answer key, or else its first chosen response."""
    # backwards, so that the first response to a prompt is the one that remains
    responses = {pair.prompt: pair.chosen for split in (corpus.test, corpus.train) for pair in reversed(split)}
    return {**responses, **corpus.answers}


def build(settings: Remote, run: Run) -> RemoteReward:
    return RemoteReward(settings, references(run.corpus) if settings.send_references else None)
