"""The table of sub-commands, of every pack, and the help that their docstrings give."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from rlhf_lab.core.packs import load, named

COMMANDS: dict[str, Callable[[Sequence[str]], int | None]] = {
    name: load(reference) for name, reference in named("commands").items()
}
"""Name → function of the words behind it. It returns an exit status, or None for 0, and raises LabError."""


def needs_words(name: str) -> bool:
    """Whether a sub-command does nothing by itself: its usage line has words that do not stand in brackets."""
    usage = described(name).partition(":")[0].removeprefix(name).strip()
    return bool(usage) and not usage.startswith("[")


def described(name: str) -> str:
    """The help text of a sub-command; its first line is a summary by itself."""
    return inspect.cleandoc(COMMANDS[name].__doc__ or "").replace("`", "")
