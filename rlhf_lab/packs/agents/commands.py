"""The sub-command that exports benchmarks of agents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError


def export_command(arguments: Sequence[str]) -> None:
    """`export RUN to=FOLDER [format=inspect]`: a benchmark of agents for other tools: inspect's logs, one per agent.

    RUN is a run directory of agent_bench, gaia or code_bench; `inspect view --log-dir FOLDER` shows the logs. Needs
    inspect-ai, in an environment of its own: docs/agents/interop.md.
    """
    options = dict(item.split("=", 1) for item in arguments[1:] if "=" in item)
    is_complete = len(arguments) > 1 and len(options) == len(arguments) - 1 and bool(options.get("to"))
    if not is_complete or options.keys() - {"to", "format"}:
        raise ConfigError("export takes a run directory and a folder: export outputs/runs/RUN to=FOLDER")
    if options.get("format", "inspect") != "inspect":
        raise ConfigError(f"format={options['format']} is not known; the one format of export is inspect")
    from rlhf_lab.packs.agents.inspect.logs import export

    files = export(Path(arguments[0]), Path(options["to"]))
    for file in files:
        console.print(f"log: {file}", soft_wrap=True)
