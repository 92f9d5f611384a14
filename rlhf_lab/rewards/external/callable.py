"""A Python function of the user as a reward; see `rlhf_lab.rewards.external.functions` for where it comes from."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from rlhf_lab.core.episodes import Episode
from rlhf_lab.core.errors import ConfigError, LabError
from rlhf_lab.core.types import Corpus, RewardBatch
from rlhf_lab.rewards.checked import scores
from rlhf_lab.rewards.external.functions import load_function
from rlhf_lab.rewards.external.settings import PythonCallable
from rlhf_lab.training.run import Run

Function = Callable[..., Sequence[float | None]]


class CallableReward:
    """Calls a function with lists of prompts and responses, and of whatever columns of the data it names.

    Args:
        function: (prompts, responses, *, answer, …) → a number or None (unscored) for each reply.
        columns: the further columns that it takes by name.
        name: of the function, in errors.
    """

    def __init__(self, function: Function, columns: Collection[str] = (), name: str = "the function"):
        self.function, self.columns, self.name = function, columns, name

    def score_episodes(self, episodes: Sequence[Episode]) -> RewardBatch:
        """Raises LabError, with file and line, for whatever the function raises."""
        prompts = [episode.prompt for episode in episodes]
        responses = [episode.response for episode in episodes]
        columns = {column: [episode.task.facts.get(column) for episode in episodes] for column in self.columns}
        try:
            values = self.function(prompts, list(responses), **columns)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]  # the frame that raised
            raise LabError(
                f"reward {self.name} failed in {Path(last.filename).name}, line {last.lineno}: "
                f"{type(error).__name__}: {error}; mend it, or let it abstain with "
                "reward.terms.callable.on_error=abstain"
            ) from error
        return RewardBatch(scores(values, responses, self.name))


def columns_of(function: Function, corpus: Corpus, name: str) -> list[str]:
    """The columns of the data that a function takes: its further parameters by name, or all for `**columns`.

    Raises:
        ConfigError: a parameter without a default is no column of the data.
    """
    tasks = corpus.environment.tasks("train") if corpus.environment else []
    all_facts = [*corpus.facts.values(), *(task.facts for task in tasks)]
    known = list(dict.fromkeys(column for facts in all_facts for column in facts))
    if corpus.answers and "answer" not in known:
        known.append("answer")
    parameters = _further_parameters(function)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return known
    unknown = [p.name for p in parameters if p.name not in known and p.default is p.empty]
    if unknown:
        wanted = ", ".join(map(repr, unknown))
        there = ", ".join(map(repr, known)) or "none"
        raise ConfigError(
            f"reward {name} takes {wanted}, which no row of data={corpus.name} has (it has: {there}); give the "
            "parameter a default, or the data the column"
        )
    return [parameter.name for parameter in parameters if parameter.name in known]


def _further_parameters(function: Function) -> list[inspect.Parameter]:
    """Parameters behind (prompts, responses); none where Python cannot tell them, as of some built-in functions."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []
    return [parameter for parameter in parameters[2:] if parameter.kind is not parameter.VAR_POSITIONAL]


def build(settings: PythonCallable, run: Run) -> CallableReward:
    function: Any = load_function(settings)
    name = settings.function or settings.name
    return CallableReward(function, columns_of(function, run.corpus, name), name)
