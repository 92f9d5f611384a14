"""Trial call of a user's function on two rows of the data, so that errors appear before anything is built."""

from __future__ import annotations

from pathlib import Path

from rlhf_lab.config.groups import DataSource
from rlhf_lab.config.root import Config
from rlhf_lab.core.episodes import Episode, Task
from rlhf_lab.core.errors import ConfigError, DataError, LabError, MissingDependency
from rlhf_lab.core.types import Corpus
from rlhf_lab.core.user_code import files_behind
from rlhf_lab.data.few import few_rows
from rlhf_lab.rewards.calling import RewardFailed, call_with_timeout, hint
from rlhf_lab.rewards.external.callable import load_function, make_reward, required_columns
from rlhf_lab.rewards.external.settings import PythonCallable

ROWS = 2
"""Number of rows of the trial call."""
SAMPLED = "This is a sampled response."
"""Placeholder response if the data have none."""
QUESTIONS = ("\n\nHuman: What is 2 + 2?\n\nAssistant:", "\n\nHuman: What is 3 + 3?\n\nAssistant:")
"""Placeholder prompts of a data set that is not on this machine yet."""


def trial_problems(settings: PythonCallable, data: DataSource) -> list[str]:
    """Load the function, call it on two rows of the data, and return the problems, one line each.

    A function that may abstain may also fail here, e.g. because its service is down. NaN for both rows is an error: it
    is the usual result of 0/0, and a function can return None to abstain.
    """
    try:
        function = load_function(settings)
        corpus = few_rows(data)
        # Without data, placeholder prompts are enough unless the function needs columns.
        if corpus is None and required_columns(function):
            return []
        reward = make_reward(settings, corpus or Corpus(name="", train=[], test=[], fingerprint=""))
    except ConfigError as error:
        return error.problems
    except (DataError, MissingDependency) as error:
        return [str(error)]
    episodes = _two_episodes(corpus) if corpus else [Episode(Task(text), text, SAMPLED) for text in QUESTIONS]
    try:
        call_with_timeout(lambda: reward.score_episodes(episodes), settings.timeout_s, reward.name)
    except LabError as error:
        # The user did not start this call, so the message says where it comes from.
        called = f"(called on {len(episodes)} rows before the run)"
        if not isinstance(error, RewardFailed):
            return [f"{error} {called}"]
        return [] if settings.on_error == "abstain" else [f"{error}; {hint('callable')} {called}"]
    if reward.returned_nan == len(episodes):
        return [
            f"reward {reward.name} returned NaN for {reward.returned_nan} of {len(episodes)} rows (100 %), which NumPy "
            "returns for 0/0; return a number, or None for a response without a score"
        ]
    return []


def _two_episodes(corpus: Corpus) -> list[Episode]:
    tasks = corpus.tasks("train")[:ROWS]
    responses = {pair.prompt: pair.chosen for pair in corpus.train if pair.chosen}
    return [Episode(task, task.prompt, responses.get(task.prompt, SAMPLED)) for task in tasks]


def problems(config: Config) -> list[str]:
    """Return the problems of user functions that cannot be loaded, or that fail on two rows of the data."""
    return [problem for term in _functions(config) for problem in trial_problems(term, config.data)]


def code_files(config: Config) -> list[Path]:
    """Return the source files of the user's reward functions that the stage calls."""
    return [file for term in _functions(config) for file in files_behind(term.function)]


def _functions(config: Config) -> list[PythonCallable]:
    terms = config.reward.terms.values() if "reward" in config.algorithm.inputs.sections else ()
    return [term for term in terms if isinstance(term, PythonCallable)]
