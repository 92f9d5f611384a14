"""A Python function of the user as a reward; see `rlhf_lab.rewards.external.functions` for where it comes from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_lab.core.episodes import Episode
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.types import Corpus, RewardBatch
from rlhf_lab.core.user_code import raised_in
from rlhf_lab.rewards.calling import RewardFailed, nan_count, scores
from rlhf_lab.rewards.external.functions import load_function, source_files
from rlhf_lab.rewards.external.settings import PythonCallable

if TYPE_CHECKING:  # it imports torch, which the check of a command does without
    from rlhf_lab.training.run import Run

Function = Callable[..., Sequence[float | None]]
TEXTS = ("prompts", "responses", "completions")
"""Names of the parameters that hold text; `completions` is TRL's word for responses."""


class CallableReward:
    """Calls a function with lists of prompts and responses, and the columns of the data that it names.

    Args:
        function: (prompts, responses, *, answer, …) or TRL's (completions, **kwargs) → a number or None (unscored) for
            each response.
        columns: the columns it takes by name.
        name: the function in errors.
        files: the user's files, in which errors are located.

    Attributes:
        returned_nan: number of responses so far for which the function returned NaN instead of None.
    """

    def __init__(
        self,
        function: Function,
        columns: Collection[str] = (),
        name: str = "the function",
        files: Collection[Path] = (),
    ):
        self.function, self.columns, self.name, self.files = function, columns, name, files
        self.returned_nan = 0

    def score_episodes(self, episodes: Sequence[Episode]) -> RewardBatch:
        """Raises RewardFailed, with file and line, for whatever the function raises."""
        prompts = [episode.prompt for episode in episodes]
        responses = [episode.response for episode in episodes]
        columns = {column: [episode.task.facts.get(column) for episode in episodes] for column in self.columns}
        positional, named = _arguments(self.function, prompts, responses)
        try:
            values = self.function(*positional, **named, **columns)
        except Exception as error:
            raise RewardFailed(
                f"reward {self.name} failed in {raised_in(error, self.files)}: {type(error).__name__}: "
                f"{error}{_messages_hint(error, named)}; correct it, or let it abstain with "
                "reward.terms.callable.on_error=abstain"
            ) from error
        scores_N = scores(values, responses, f"reward {self.name}")
        self.returned_nan += nan_count(values)
        return RewardBatch(scores_N)


def _arguments(
    function: Function, prompts: Sequence[str], responses: Sequence[str]
) -> tuple[list[list[str]], dict[str, list[str]]]:
    """The texts of a call, by position or by name.

    A function with a parameter `completions` is written for TRL, which calls by name; so is one whose second parameter
    is not the responses although it has a parameter of this name.
    """
    texts = {"prompts": list(prompts), "responses": list(responses), "completions": list(responses)}
    if not _called_by_name(function):
        return [texts["prompts"], texts["responses"]], {}
    parameters = inspect.signature(function).parameters.values()
    named = {name: text for name, text in texts.items() if name in {parameter.name for parameter in parameters}}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        named["prompts"] = texts["prompts"]  # TRL hands the prompts over whether or not the function names them
    return [], named


def _called_by_name(function: Function) -> bool:
    names = [parameter.name for parameter in _parameters(function)]
    return "completions" in names or ("responses" in names and names[1:2] != ["responses"])


def _messages_hint(error: Exception, named: Collection[str]) -> str:
    """The usual reason why a function written for TRL fails: it expects conversations."""
    expects_messages = "completions" in named and isinstance(error, (TypeError, AttributeError, KeyError))
    return " (prompts and completions are text here, not lists of messages)" if expects_messages else ""


def columns_of(function: Function, corpus: Corpus, name: str) -> list[str]:
    """The columns of the data that a function takes: its further parameters by name, or all for `**columns`.

    Raises:
        ConfigError: the function takes no prompts and responses, or a parameter without a default is no column of the
            data.
    """
    tasks = corpus.environment.tasks("train") if corpus.environment else []
    all_facts = [*corpus.facts.values(), *(task.facts for task in tasks)]
    known = list(dict.fromkeys(column for facts in all_facts for column in facts))
    if corpus.answers and "answer" not in known:
        known.append("answer")
    _check_texts(function, name)
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


def _check_texts(function: Function, name: str) -> None:
    """Raises ConfigError for a function that cannot take prompts and responses, such as one of a single text."""
    parameters = _parameters(function)
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
    takes_two = len(positional) >= 2 or any(p.kind is p.VAR_POSITIONAL for p in positional)
    if parameters and not takes_two and not _called_by_name(function):
        listed = ", ".join(map(str, parameters))
        raise ConfigError(
            f"reward {name} takes ({listed}); write it as a function of two lists, (prompts, responses), or as TRL "
            "does, (completions, **kwargs)"
        )


def _further_parameters(function: Function) -> list[inspect.Parameter]:
    """Parameters other than the prompts and responses; none where Python cannot tell them, as of some built-ins."""
    parameters = _parameters(function)
    if _called_by_name(function):
        parameters = [parameter for parameter in parameters if parameter.name not in TEXTS]
    else:
        parameters = parameters[2:]
    return [parameter for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL]


def _parameters(function: Function) -> list[inspect.Parameter]:
    """Parameters of a function; none where Python cannot tell them."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []


def required_columns(settings: PythonCallable) -> list[str]:
    """Columns without which the function cannot be called. Raises ConfigError where it cannot be loaded."""
    parameters = _further_parameters(load_function(settings))
    return [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]


def make_reward(settings: PythonCallable, corpus: Corpus) -> CallableReward:
    """Load the function that the settings name, to be called with the rows of a corpus. Raises ConfigError."""
    function: Any = load_function(settings)
    name = settings.function or settings.name
    return CallableReward(function, columns_of(function, corpus, name), name, source_files(settings))


def build(settings: PythonCallable, run: Run) -> CallableReward:
    return make_reward(settings, run.corpus)
