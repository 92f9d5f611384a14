"""Command of a recipe that a sub-command abbreviates."""

from __future__ import annotations

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
