"""The words of a command line: Hydra's flags, settings, and an explanation of every word that is neither.

Hydra's own parsers answer a mistake with a usage text or a token's position. Here each wrong word is named, together
with what to write instead.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, ValueType
from hydra.errors import HydraException

from rlhf_lab.config import inventory, registry
from rlhf_lab.core.errors import ConfigError

UNUSABLE_FLAGS = {
    "config_path": "--config-path would replace the lab's own settings; add a folder with --config-dir FOLDER",
    "config_name": "--config-name would replace the lab's own settings; write +recipe=NAME",
    "experimental_rerun": "--experimental-rerun: the same command runs again by itself and reuses what is complete",
    "package": "--package: --cfg job prints everything; leave it out",
}
"""Hydra's flags that nothing here reads → what to write instead."""

UNUSABLE_HYDRA_KEYS = {
    "hydra.run.dir": "a run's folder is OUTPUTS/runs/<algorithm>-<key>; choose the first part with outputs=FOLDER",
    "hydra.sweep.dir": "a study's folder is OUTPUTS/studies/<name>; choose the first part with outputs=FOLDER",
    "hydra.sweep.subdir": "jobs are in OUTPUTS/studies/<name>/jobs; choose the first part with outputs=FOLDER",
    "hydra.output_subdir": "a run keeps its settings in config.yaml; leave it out",
    "hydra.job.chdir": "every path is relative to the working directory; cd FOLDER first, or write outputs=FOLDER",
    "hydra.verbose": "what a run does is in its metrics.jsonl and notes; leave it out",
    "hydra.mode": "lists of values make a sweep by themselves, e.g. seed=0,1,2; leave it out",
    "hydra.searchpath": "add a folder of your own with --config-dir FOLDER",
    "hydra.job_logging": "what a run does is in its metrics.jsonl and notes; leave it out",
    "hydra.hydra_logging": "what a run does is in its metrics.jsonl and notes; leave it out",
    "hydra.sweeper.params": "name the values on the command line, e.g. algorithm.beta=0.1,0.3",
    "hydra.sweeper": "a study plans its jobs before they start; name the values, e.g. algorithm.beta=0.1,0.3",
}
"""Hydra's keys that do not work here → what to write instead. Of several that fit, the longest is used."""

USABLE_HYDRA_KEYS = ("hydra.launcher", "hydra.sweeper.max_batch_size", "hydra.job.name", "hydra.job.env_set")
"""Keys that are handed to Hydra with a sweep's jobs."""


def split(arguments: Sequence[str]) -> argparse.Namespace:
    """Hydra's flags and, as `overrides`, the other words, wherever each stands. Raises ConfigError."""

    def refuse(message: str) -> NoReturn:
        raise ConfigError(f"{message}; --help lists every flag")

    parser = get_args_parser()
    parser.error = refuse  # type: ignore[method-assign]  # argparse prints a usage text and exits
    flags = parser.parse_intermixed_args(list(arguments))
    problems = [advice for name, advice in UNUSABLE_FLAGS.items() if getattr(flags, name) is not None]
    if flags.config_dir and not Path(flags.config_dir).is_dir():
        problems.append(f"--config-dir {flags.config_dir}: there is no such folder")
    if problems:
        raise ConfigError(problems)
    return flags


def parse(words: Iterable[str], recipes: Collection[str], problems: list[str]) -> list[Override]:
    """The overrides that can be read; every other word is explained in `problems`.

    Args:
        recipes: names of recipes, which people write bare.
    """
    parser = OverridesParser.create()
    overrides = []
    for word in words:
        try:
            override = parser.parse_override(word)
        except HydraException as error:
            problems.append(_explain_word(word, str(error), recipes))
            continue
        if override.is_interval_sweep():
            problems.append(
                f"{word}: an interval has no values to run one after the other; name some, such as "
                f"{override.key_or_group}=0.1,0.3,1, or steps with range(0,1,0.25)"
            )
        elif override.value_type == ValueType.GLOB_CHOICE_SWEEP:
            problems.append(f"{word}: glob() is not read here; {_in_place_of_glob(override)}")
        elif advice := _unusable_hydra_key(override.key_or_group):
            problems.append(f"{word}: {advice}")
        elif override.key_or_group == "recipe" and not override.is_add():
            problems.append(f"{word}: a recipe is added to the settings, so it has a plus: write +{word.lstrip('+')}")
        else:
            overrides.append(override)
    return overrides


def _in_place_of_glob(override: Override) -> str:
    """What to write instead of glob(): the options that it stands for."""
    key = override.key_or_group
    if key not in registry.groups():
        return f"name the values, such as {key}=0,1,2"
    matching = override._value.filter(inventory.options(key))  # type: ignore[union-attr]
    if not matching:
        return f"no option of {key} matches; `explain {key}` lists them"
    return f"name the options: {key}={','.join(matching)}"


def _unusable_hydra_key(key: str) -> str | None:
    """What to write instead of a key of Hydra that does not work here; None for every other key."""
    key = key.replace("/", ".")
    if key.partition(".")[0] != "hydra" or key.startswith(USABLE_HYDRA_KEYS):
        return None
    fitting = [name for name in UNUSABLE_HYDRA_KEYS if key == name or key.startswith(f"{name}.")]
    return UNUSABLE_HYDRA_KEYS[max(fitting, key=len)] if fitting else "the lab does not use it; leave it out"


def _explain_word(word: str, message: str, recipes: Collection[str]) -> str:
    """What is wrong with a word that is no override."""
    if word in recipes:
        return f"{word} is a recipe; write +recipe={word}"
    if word in registry.groups():
        return f"{word} is a group; choose one of its options with {word}=NAME; `explain {word}` lists its settings"
    if word.endswith(",") or word.count("[") != word.count("]") or word.count("{") != word.count("}"):
        return f"{word} is cut off, perhaps at a space; put what has spaces in quotes, such as 'reward=[bt, length]'"
    if "=" not in word:
        close = get_close_matches(word, recipes, n=1)
        hint = f"; did you mean +recipe={close[0]}?" if close else "; list and explain show what there is"
        return f"{word} is neither a setting (KEY=VALUE) nor a command{hint}"
    key, _, value = word.partition("=")
    if not re.fullmatch(r"[+~]*[\w./@:-]+", key):
        return f"{word} is not KEY=VALUE: {key!r} is no key"
    first_line = message.strip().splitlines()[0]
    quoted = shlex.quote(f'{key}="{value}"')
    return f"{word}: its value cannot be read ({first_line}); put text with special characters in quotes: {quoted}"


def check_hydra(overrides: Sequence[str], *, sweep: bool) -> None:
    """Raises ConfigError for keys that Hydra reads for the jobs of a sweep alone.

    Args:
        sweep: whether there are several jobs; only then Hydra starts them.
    """
    keys = {word: word.lstrip("+~").partition("=")[0].replace("/", ".") for word in overrides}
    problems = [
        f"{word} is about the jobs of a sweep, and this is a single run, which starts here; leave it out, or name "
        "several values, e.g. seed=0,1"
        for word, key in keys.items()
        if key.startswith(USABLE_HYDRA_KEYS) and not sweep
    ]
    if problems:
        raise ConfigError(problems)
