"""A user's Python function as a reward."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rlhf_lab.core.episodes import Episode
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.types import Corpus, RewardBatch
from rlhf_lab.core.user_code import files_behind, load_from_file, raised_in
from rlhf_lab.rewards.calling import RewardFailed, nan_count, scores
from rlhf_lab.rewards.external.settings import PythonCallable

if TYPE_CHECKING:  # this module imports torch, and checking a command must not
    from rlhf_lab.training.run import Run

Function = Callable[..., Sequence[float | None]]
TEXTS = ("prompts", "responses", "completions")
"""Names of parameters that receive text; `completions` is TRL's word for responses."""
OF_THE_TRAINER = ("completion_ids", "trainer_state", "log_extra", "log_metric", "environments")
"""Names of parameters that only TRL's GRPOTrainer passes."""


class CallableReward:
    """Reward that calls a function with lists of prompts and responses, and the data columns that it names.

    Args:
        function: (prompts, responses, *, answer, …) or TRL's (completions, **kwargs) → a number or None (unscored) for
            each response.
        columns: columns that it receives by name.
        files: the user's files; messages give the position of an error in them.

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
        """Score episodes. Raise RewardFailed with file and line for any exception of the function."""
        prompts = [episode.prompt for episode in episodes]
        responses = [episode.response for episode in episodes]
        columns = {name: [episode.task.metadata.get(name) for episode in episodes] for name in self.columns}
        positional, named = _arguments(self.function, prompts, responses)
        try:
            values = _plain(self.function(*positional, **named, **columns))
        except Exception as error:
            raise RewardFailed(
                f"reward {self.name} failed in {raised_in(error, self.files)}: {type(error).__name__}: "
                f"{error}{_messages_hint(error, named)}"
            ) from error
        scores_N = scores(values, responses, f"reward {self.name}")
        self.returned_nan += nan_count(values)
        return RewardBatch(scores_N)


def _plain(values: Any) -> Any:
    """Return what a function returned as numbers: the result of a coroutine, the items of a generator, of a tensor."""
    if inspect.iscoroutine(values):
        # In a thread of its own, because a notebook has a running event loop in this one.
        with ThreadPoolExecutor(1) as pool:
            values = pool.submit(asyncio.run, values).result()
    if hasattr(values, "detach"):  # also on a GPU, with a gradient, or in bfloat16, which NumPy does not read
        return values.tolist()
    if isinstance(values, Iterator):
        values = list(values)
    if isinstance(values, (list, tuple)):
        return [value.item() if getattr(value, "ndim", None) == 0 else value for value in values]
    return values


def _arguments(
    function: Function, prompts: Sequence[str], responses: Sequence[str]
) -> tuple[list[list[str]], dict[str, list[str]]]:
    """Return the texts of a call as (positional arguments, keyword arguments).

    A function with a parameter `completions` is written for TRL, which calls by name. A function is also called by name
    if it has a parameter `responses` that is not its second parameter.
    """
    texts = {"prompts": list(prompts), "responses": list(responses), "completions": list(responses)}
    if not _called_by_name(function):
        return [texts["prompts"], texts["responses"]], {}
    parameters = _parameters(function)
    named = {parameter.name: texts[parameter.name] for parameter in parameters if parameter.name in texts}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        named["prompts"] = texts["prompts"]  # TRL always passes the prompts if the function accepts **kwargs
    return [], named


def _called_by_name(function: Function) -> bool:
    """Return True if a function receives its texts by name instead of by position."""
    names = [parameter.name for parameter in _parameters(function)]
    is_reordered = "responses" in names and names[1:2] != ["responses"]
    return "completions" in names or is_reordered


def _messages_hint(error: Exception, named: Collection[str]) -> str:
    """Return the usual reason why a function written for TRL fails: it expects conversations."""
    # "string indices must be integers, not 'str'", or "'str' object has no attribute 'get'"
    is_about_text = isinstance(error, (TypeError, AttributeError)) and "str" in str(error)
    expects_messages = "completions" in named and is_about_text
    return " (prompts and completions are text here, not lists of messages)" if expects_messages else ""


def columns_of(function: Function, corpus: Corpus, name: str) -> list[str]:
    """Return the data columns that a function receives: its additional parameters by name, or all for `**columns`.

    Raises:
        ConfigError: the function does not accept prompts and responses, or a parameter without a default is not a
            column of the data.
    """
    # An environment has columns of its own: the metadata of its tasks.
    tasks = corpus.environment.tasks("train") if corpus.environment else []
    all_metadata = [*corpus.metadata.values(), *(task.metadata for task in tasks)]
    known = list(dict.fromkeys(column for metadata in all_metadata for column in metadata))
    if corpus.answers and "answer" not in known:
        known.append("answer")
    _check_texts(function, name)
    unknown = [name for name in required_columns(function) if name not in known]
    if unknown:
        expected = ", ".join(map(repr, unknown))
        there = ", ".join(map(repr, known)) or "none"
        fix = "give the parameter a default, or add the column to the data"
        if set(unknown) <= set(OF_THE_TRAINER):
            fix = "give the parameter a default: TRL's trainer passes it, and a reward here gets text and columns only"
        raise ConfigError(
            f"reward {name} takes {expected}, which no row of data={corpus.name} has (it has: {there}); {fix}"
        )
    parameters = _further_parameters(function)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        # A column with the name of a text would be passed twice.
        texts = TEXTS if _called_by_name(function) else [parameter.name for parameter in _parameters(function)[:2]]
        return [column for column in known if column not in texts]
    return [parameter.name for parameter in parameters if parameter.name in known]


def _check_texts(function: Function, name: str) -> None:
    """Raise ConfigError for a function that cannot accept prompts and responses, e.g. a function of a single text."""
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
    """Return the parameters other than prompts and responses; empty if Python cannot list them (some built-ins)."""
    parameters = _parameters(function)
    if _called_by_name(function):
        parameters = [parameter for parameter in parameters if parameter.name not in TEXTS]
    else:
        parameters = parameters[2:]
    return [parameter for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL]


def _parameters(function: Function) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []


def required_columns(function: Function) -> list[str]:
    parameters = _further_parameters(function)
    return [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]


def load_function(settings: PythonCallable) -> Function:
    """Return the function that a callable reward names. Raise ConfigError if it is missing, broken, or not a function.

    The file is read again at each call, so that an edit takes effect within a notebook session.
    """
    where = f"reward.terms.callable.function={settings.function}"
    function = load_from_file(where, settings.function)
    if not callable(function):
        raise ConfigError(f"{where} is {type(function).__name__}, not a function of (prompts, responses)")
    return cast(Function, function)


def make_reward(settings: PythonCallable, corpus: Corpus) -> CallableReward:
    """Load the function that the settings name, and bind it to a corpus. Raise ConfigError if that fails."""
    function, name = load_function(settings), settings.function
    return CallableReward(function, columns_of(function, corpus, name), name, files_behind(name))


def build(settings: PythonCallable, run: Run) -> CallableReward:
    return make_reward(settings, run.corpus)
