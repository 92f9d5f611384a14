"""A reward served over HTTP."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np

from rlhf_lab.errors import LabError
from rlhf_lab.rewards.settings import Remote
from rlhf_lab.train.run import Run
from rlhf_lab.types import RewardBatch


class RemoteReward:
    """Asks `settings.url` for the rewards of a batch; see `Remote` for the form of question and answer."""

    def __init__(self, settings: Remote, pause_s: float = 0.5):
        self.settings, self.pause_s = settings, pause_s

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        size = self.settings.batch_size
        scores: list[float] = []
        for begin in range(0, len(responses), size):
            scores += self._ask(list(prompts[begin : begin + size]), list(responses[begin : begin + size]))
        return RewardBatch(np.array(scores, dtype=np.float64))

    def _ask(self, prompts: list[str], responses: list[str]) -> list[float]:
        body = json.dumps({"prompts": prompts, "responses": responses}).encode()
        for attempt in range(self.settings.retries + 1):
            try:
                return self._post(body, len(responses))
            except (HTTPError, URLError, TimeoutError, OSError) as error:
                refused = isinstance(error, HTTPError) and 400 <= error.code < 500 and error.code != 429
                if refused or attempt == self.settings.retries:
                    raise LabError(f"reward service {self.settings.url} does not answer: {error}") from error
                time.sleep(self.pause_s * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    def _post(self, body: bytes, count: int) -> list[float]:
        request = Request(self.settings.url, data=body, headers={"Content-Type": "application/json"})
        with urlopen(request, timeout=self.settings.timeout_s or None) as answer:
            content = json.loads(answer.read())
        rewards = content.get("rewards") if isinstance(content, dict) else None
        if not isinstance(rewards, list) or len(rewards) != count:
            raise LabError(
                f'reward service {self.settings.url} answered {str(content)[:100]}; expected {{"rewards": [...]}} with '
                f"{count} numbers or nulls"
            )
        return [math.nan if reward is None else float(reward) for reward in rewards]


def build(settings: Remote, run: Run) -> RemoteReward:
    del run
    return RemoteReward(settings)
