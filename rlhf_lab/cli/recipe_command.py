"""Return types of sub-commands that run one or several recipes, such as `attack` for `+recipe=attack`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class RecipeCommand:
    """Recipe command line that a sub-command returns, to be run next.

    Attributes:
        words: arguments as on the command line, such as "+recipe=attack".
        closing: text that is printed after the run has succeeded.
    """

    words: list[str]
    closing: str = ""


@dataclass(frozen=True)
class RecipeCommands:
    """Several recipe command lines that a sub-command returns, to be run one after another.

    Attributes:
        commands: the commands, in order.
        finish: function that is called at the end, also after an error or an interruption.
    """

    commands: list[RecipeCommand]
    finish: Callable[[], None]
