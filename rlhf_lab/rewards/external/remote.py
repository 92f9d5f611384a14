"""A reward served over HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlhf_lab.core.errors import LabError
from rlhf_lab.core.files import parse_json
from rlhf_lab.core.types import Corpus, FloatArray, RewardBatch
from rlhf_lab.rewards.checked import scores
from rlhf_lab.rewards.external.post import post_json
from rlhf_lab.rewards.external.settings import Remote
from rlhf_lab.training.run import Run


class RemoteReward:
    """Asks `settings.url` for the rewards of a batch; see `Remote` for the form of question and answer.

    Args:
        references: prompt → the answer in the data, with `send_references`.
    """

    def __init__(self, settings: Remote, references: Mapping[str, str] | None = None, pause_s: float = 0.5):
        self.settings = settings
        self.references = references or {}
        self.pause_s = pause_s

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        size = self.settings.batch_size
        batches = [slice(begin, begin + size) for begin in range(0, len(responses), size)]
        rewards = [self._request_rewards(list(prompts[batch]), list(responses[batch])) for batch in batches]
        return RewardBatch(np.concatenate(rewards) if rewards else np.zeros(0))

    def _request_rewards(self, prompts: list[str], responses: list[str]) -> FloatArray:
        """The service's rewards of one batch, (N,). Raises LabError for an answer of another form."""
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
            content = body  # no JSON: refused below, with its beginning in the message
        rewards = content.get("rewards") if isinstance(content, dict) else None
        if not isinstance(rewards, list) or len(rewards) != len(responses):
            raise LabError(
                f'reward service {settings.url} answered {str(content)[:100]}; expected {{"rewards": [...]}} with '
                f"{len(responses)} numbers or nulls"
            )
        return scores(rewards, responses, f"reward service {settings.url}")


def references(corpus: Corpus) -> dict[str, str]:
    """Prompt → its answer in the answer key, or else the first chosen reply to it."""
    replies = {}
    for split in (corpus.test, corpus.train):
        for pair in reversed(split):  # backwards, so that the first reply to a prompt is written last and stays
            replies[pair.prompt] = pair.chosen
    return {**replies, **corpus.answers}


def build(settings: Remote, run: Run) -> RemoteReward:
    return RemoteReward(settings, references(run.corpus) if settings.send_references else None)
