"""The flags `-q` and `-v` of the command line: how much a command prints."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rlhf_lab.cli.table import LISTING
from rlhf_lab.core.console import QUIET, VERBOSE, VERBOSITY
from rlhf_lab.core.errors import ConfigError

FLAGS = {"-q": QUIET, "--quiet": QUIET, "-v": VERBOSE, "--verbose": VERBOSE}
"""Flag → verbosity."""
ONLY_RESULTS = (*LISTING, "explain", "--help", "-h", "--hydra-help", "--version", "--cfg", "-c", "--info", "-i", "-sc")
"""Commands and flags with which a command prints only its result, so that `-q` and `-v` would have no effect."""


def take_flags(arguments: Sequence[str]) -> list[str]:
    """Set the verbosity of this process and of those that it starts. Return the arguments without the flags.

    Raises:
        ConfigError: both verbosities are requested, or the command prints the same with each of them.
    """
    chosen = {argument: FLAGS[argument] for argument in arguments if argument in FLAGS}
    others = [argument for argument in arguments if argument not in FLAGS]
    if not chosen:
        return others
    flags = " and ".join(chosen)
    if len(set(chosen.values())) > 1:
        raise ConfigError(f"{flags} contradict each other; use -q for errors and results only, or -v for more detail")
    for word in others or [LISTING[0]]:
        name = word.partition("=")[0]
        # The name of a command is the first word; later words are its arguments.
        is_command = not name.startswith("-") and word is not (others or [word])[0]
        if name in ONLY_RESULTS and not is_command:
            raise ConfigError(f"{flags} has no effect on `{name}`, which prints only its result; remove it")
    os.environ[VERBOSITY] = next(iter(chosen.values()))
    return others
