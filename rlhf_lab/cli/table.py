"""Table of the sub-commands of all packs, with the help from their docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from rlhf_lab.cli.recipe_command import RecipeCommand, RecipeCommands
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.packs import defined_twice, load, named

LISTING = ("list", "help")
"""Arguments that list recipes and sub-commands, as a command line without arguments does."""


Command = Callable[[Sequence[str]], int | RecipeCommand | RecipeCommands | None]
"""Type of a sub-command's function. It receives the arguments after the name of the sub-command. It returns an exit
status (None means 0), or the recipe commands to run next, and raises LabError."""


def load_commands() -> dict[str, Command]:
    """Return the sub-commands of all packs. Raise ConfigError if one of them has a name in `LISTING`."""
    references = named("commands")
    for name in LISTING:
        if name in references:
            raise ConfigError(defined_twice(f"command {name}", "rlhf_lab", references[name]))
    return {name: load(reference) for name, reference in references.items()}


COMMANDS = load_commands()
"""Name of each sub-command → its function."""


def needs_words(name: str) -> bool:
    """Return True if a sub-command requires arguments: its usage line has some that are not in brackets."""
    # The usage line is the text before the first colon, e.g. "report DIR".
    usage = description_of(name).partition(":")[0].removeprefix(name).strip()
    return bool(usage) and not usage.startswith("[")


def description_of(name: str) -> str:
    """Return the help text of a sub-command; its first line is a complete summary."""
    return inspect.cleandoc(COMMANDS[name].__doc__ or "").replace("`", "")
