"""A Python function of the user as a reward; see `rlhf_lab.rewards.external.functions` for where it comes from."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from rlhf_lab.core.errors import LabError
from rlhf_lab.core.types import RewardBatch
from rlhf_lab.rewards.checked import scores
from rlhf_lab.rewards.external.functions import load_function
from rlhf_lab.rewards.external.settings import PythonCallable
from rlhf_lab.training.run import Run

Function = Callable[[list[str], list[str]], Sequence[float | None]]


class CallableReward:
    """Calls a function with lists of prompts and responses; None is unscored.

    Args:
        name: of the function, in errors.
    """

    def __init__(self, function: Function, name: str = "the function"):
        self.function, self.name = function, name

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        """Raises LabError, with file and line, for whatever the function raises."""
        try:
            values = self.function(list(prompts), list(responses))
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]  # the frame that raised
            raise LabError(
                f"reward {self.name} failed in {Path(last.filename).name}, line {last.lineno}: "
                f"{type(error).__name__}: {error}; mend it, or let it abstain with "
                "reward.terms.callable.on_error=abstain"
            ) from error
        return RewardBatch(scores(values, responses, self.name))


def build(settings: PythonCallable, run: Run) -> CallableReward:
    del run
    return CallableReward(load_function(settings), settings.function or settings.name)
