"""Sub-command that exports benchmarks of agents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError


def export_command(arguments: Sequence[str]) -> None:
    """`export RUN to=DIR [format=inspect]`: export a benchmark of agents as inspect logs, one per agent.

    RUN is a run directory of agent_bench, gaia or code_bench. `inspect view --log-dir DIR` displays the logs. The
    command needs inspect-ai, which is installed in a separate environment: docs/agents/interop.md.
    """
    words = arguments[1:]
    options = dict(word.split("=", 1) for word in words if "=" in word)
    is_complete = bool(words) and len(options) == len(words) and bool(options.get("to"))
    if not is_complete or options.keys() - {"to", "format"}:
        raise ConfigError("export needs a run directory and a target directory: export outputs/runs/RUN to=DIR")
    if options.get("format", "inspect") != "inspect":
        raise ConfigError(f"format={options['format']} is unknown; the only format of export is inspect")
    # Imported after the checks, so that a wrong command is reported at once.
    from rlhf_lab.packs.agents.inspect.logs import export

    files = export(Path(arguments[0]), Path(options["to"]))
    for file in files:
        console.print(f"log: {file}")
