"""A Python function of another package as a reward."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlhf_lab.rewards.checked import scores
from rlhf_lab.rewards.entry_points import function
from rlhf_lab.rewards.settings import PythonCallable
from rlhf_lab.train.run import Run
from rlhf_lab.types import RewardBatch

Function = Callable[[list[str], list[str]], Sequence[float | None]]


class CallableReward:
    """Calls a function with lists of prompts and responses; None is unscored."""

    def __init__(self, function: Function):
        self.function = function

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        return RewardBatch(scores(self.function(list(prompts), list(responses)), responses, "the function"))


def build(settings: PythonCallable, run: Run) -> CallableReward:
    del run
    return CallableReward(function(settings.name))
