"""The page of the command line: the usage of each sub-command, as `NAME --help` prints it."""

from __future__ import annotations

from docs_site.page import Page
from rlhf_lab.cli.table import COMMANDS, description_of


def page() -> Page:
    """Return the page of all sub-commands."""
    text = (
        "# Command line\n\n`python -m rlhf_lab +recipe=NAME` runs a recipe; the sub-commands below do the rest. "
        "[Running](/docs/running.md#commands) lists both by purpose.\n"
    )
    for name in sorted(COMMANDS):
        text += f"\n## {name}\n\n```text\n{description_of(name)}\n```\n"
    return Page("reference/cli.md", "Command line", text)
