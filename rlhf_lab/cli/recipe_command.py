"""Commands of recipes that a sub-command abbreviates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class RecipeCommand:
    """Command of a recipe, for a sub-command that prepares one.

    Attributes:
        words: arguments as on the command line, such as "+recipe=attack".
        closing: text that is printed after the run has succeeded.
    """

    words: list[str]
    closing: str = ""


@dataclass(frozen=True)
class RecipeCommands:
    """Commands of several recipes that run one after another.

    Attributes:
        commands: the commands, in order.
        finish: function that is called at the end, also after an error or an interruption.
    """

    commands: list[RecipeCommand]
    finish: Callable[[], None]
