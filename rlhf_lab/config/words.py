"""Arguments of a command line: Hydra's flags, settings, and an explanation of every argument that is neither.

Hydra's own parsers answer a mistake with a usage text or a token's position. This module names each wrong argument and
says what to write instead.
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
from rlhf_lab.config.overrides import forced
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.packs import named

UNUSABLE_FLAGS = {
    "config_path": "--config-path would replace rlhf_lab's own settings; add a directory with --config-dir DIR",
    "config_name": "--config-name would replace rlhf_lab's own settings; write +recipe=NAME",
    "experimental_rerun": "--experimental-rerun is not needed: the same command runs again and reuses complete stages",
    "package": "--package is not supported: --cfg job prints everything; remove it",
}
"""Hydra flag that nothing here reads → what to write instead."""

UNUSABLE_HYDRA_KEYS = {
    "hydra.run.dir": "a run's directory is OUTPUTS/runs/<algorithm>-<key>; choose the first part with outputs=DIR",
    "hydra.sweep.dir": "a study's directory is OUTPUTS/studies/<name>; choose the first part with outputs=DIR",
    "hydra.sweep.subdir": "jobs are in OUTPUTS/studies/<name>/jobs; choose the first part with outputs=DIR",
    "hydra.output_subdir": "a run stores its settings in config.yaml; remove this key",
    "hydra.job.chdir": "all paths are relative to the working directory; run cd DIR first, or write outputs=DIR",
    "hydra.verbose": "a run writes its progress to metrics.jsonl and its notes; remove this key",
    "hydra.mode": "lists of values make a sweep by themselves, e.g. seed=0,1,2; remove this key",
    "hydra.searchpath": "add a directory of your own with --config-dir DIR",
    "hydra.job_logging": "a run writes its progress to metrics.jsonl and its notes; remove this key",
    "hydra.hydra_logging": "a run writes its progress to metrics.jsonl and its notes; remove this key",
    "hydra.sweeper.params": "name the values on the command line, e.g. algorithm.beta=0.1,0.3",
    "hydra.sweeper": "a study plans its jobs before they start; name the values, e.g. algorithm.beta=0.1,0.3",
}
"""Key of Hydra that does not work here → what to write instead. If several match, the more specific one is used."""

USABLE_HYDRA_KEYS = ("hydra.launcher", "hydra.sweeper.max_batch_size", "hydra.job.name", "hydra.job.env_set")
"""Keys that are passed to Hydra together with a sweep's jobs."""


def split(arguments: Sequence[str]) -> argparse.Namespace:
    """Separate Hydra's flags from all other arguments (attribute `overrides`), in any order.

    Raise ConfigError for wrong flags.
    """

    def refuse(message: str) -> NoReturn:
        raise ConfigError(f"{message}; --help lists every flag")

    parser = get_args_parser()
    # By default argparse prints a usage text and exits the process.
    parser.error = refuse  # type: ignore[method-assign]
    # "Intermixed", because users also write flags after settings.
    flags = parser.parse_intermixed_args(list(arguments))
    problems = [hint for name, hint in UNUSABLE_FLAGS.items() if getattr(flags, name) is not None]
    if flags.config_dir and not Path(flags.config_dir).is_dir():
        problems.append(f"--config-dir {flags.config_dir}: there is no such directory; name an existing one")
    if problems:
        raise ConfigError(problems)
    return flags


def parse(words: Iterable[str], recipes: Collection[str], problems: list[str]) -> list[Override]:
    """Return the overrides that can be parsed; explain every other argument in `problems`.

    Args:
        recipes: names of recipes, which users often write without +recipe=.
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
                f"{word}: an interval has no list of values to run; name some values, such as "
                f"{override.key_or_group}=0.1,0.3,1, or steps with range(0,1,0.25)"
            )
        elif override.value_type == ValueType.GLOB_CHOICE_SWEEP:
            problems.append(f"{word}: glob() is not supported; {_in_place_of_glob(override)}")
        elif override.is_sweep_override() and not any(True for _ in override.sweep_iterator()):
            problems.append(f"{word}: the range has no values; its end must lie beyond its start, such as range(0,3)")
        elif hint := _unusable_hydra_key(override.key_or_group):
            problems.append(f"{word}: {hint}")
        elif override.is_delete() and override.key_or_group in (*registry.groups(), "recipe"):
            replacement = f"{forced(override.key_or_group)}=NAME"
            problems.append(f"{word}: {override.key_or_group} cannot be removed, only replaced: {replacement}")
        elif override.key_or_group == "recipe" and not override.is_add():
            problems.append(f"{word}: a recipe is added to the settings, so it has a plus: write +{word.lstrip('+')}")
        else:
            overrides.append(override)
    return overrides


def _in_place_of_glob(override: Override) -> str:
    """Return what to write instead of glob(): the options that it matches."""
    key = override.key_or_group
    if key not in registry.groups():
        return f"name the values, such as {key}=0,1,2"
    matching = override._value.filter(inventory.options(key))  # type: ignore[union-attr]
    if not matching:
        return f"no option of {key} matches; `explain {key}` lists them"
    return f"name the options: {key}={','.join(matching)}"


def _unusable_hydra_key(key: str) -> str | None:
    """Return what to write instead of a key of Hydra that does not work here; None for every other key."""
    key = key.replace("/", ".")
    if key.partition(".")[0] != "hydra" or key.startswith(USABLE_HYDRA_KEYS):
        return None
    fitting = [name for name in UNUSABLE_HYDRA_KEYS if key == name or key.startswith(f"{name}.")]
    # A longer key has a more specific message.
    return UNUSABLE_HYDRA_KEYS[max(fitting, key=len)] if fitting else "rlhf_lab does not use it; remove this key"


def _explain_word(word: str, message: str, recipes: Collection[str]) -> str:
    """Return what is wrong with an argument that is not an override."""
    if word in recipes:
        return f"{word} is a recipe; write +recipe={word}"
    if word in registry.groups():
        return f"{word} is a group; choose one of its options with {word}=NAME; `explain {word}` lists its settings"
    if word in ("list", *named("commands")):
        return f"{word} is a command, which comes first: python -m rlhf_lab {word} …"
    # A shell splits an unquoted argument at its spaces, which leaves unbalanced brackets.
    if word.endswith(",") or word.count("[") != word.count("]") or word.count("{") != word.count("}"):
        return f"{word} is cut off, perhaps at a space; quote arguments with spaces, such as 'reward=[bt, length]'"
    if "=" not in word:
        close = get_close_matches(word, recipes, n=1)
        hint = f"; did you mean +recipe={close[0]}?" if close else "; list and explain show what exists"
        return f"{word} is neither a setting (KEY=VALUE) nor a command{hint}"
    key, _, value = word.partition("=")
    if not re.fullmatch(r"[+~]*[\w./@:-]+", key):
        return f"{word} is not KEY=VALUE: {key!r} is not a valid key"
    first_line = message.strip().splitlines()[0]
    quoted = shlex.quote(f'{key}="{value}"')
    return f"{word}: its value cannot be parsed ({first_line}); quote text with special characters: {quoted}"


PROCESSES_PER_JOB = ("hydra.launcher.nodes", "hydra.launcher.tasks_per_node")
"""Launcher settings that start a job's command several times, on several nodes or on one."""


def check_hydra(overrides: Sequence[str], *, sweep: bool) -> None:
    """Raise ConfigError for keys that Hydra uses only for the jobs of a sweep, or that would run each job repeatedly.

    Args:
        sweep: True if there are several jobs; only then does Hydra start them.
    """
    keys = {word: word.lstrip("+~").partition("=")[0].replace("/", ".") for word in overrides}
    problems = []
    for word, key in keys.items():
        if not key.startswith(USABLE_HYDRA_KEYS):
            continue
        if not sweep:
            problems.append(
                f"{word} applies to the jobs of a sweep, but this is a single run, which starts here; remove it, or "
                "name several values, e.g. seed=0,1"
            )
        elif key in PROCESSES_PER_JOB and word.partition("=")[2] not in ("1", "null"):
            problems.append(
                f"{word} would start every job of the sweep that many times, each doing all of its work. A job is one "
                "command on one node, which starts its own processes: use hydra.launcher.gpus_per_node=N with "
                "sharding=… instead. For one run on several nodes use launchers/slurm_torchrun.sbatch"
            )
    if problems:
        raise ConfigError(problems)
