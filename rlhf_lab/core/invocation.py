"""The running command: its command line, which child processes record, and whether it has started to build a stage."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rlhf_lab.core.redaction import redacted_arguments

COMMAND = "RLHF_LAB_COMMAND"
"""Environment variable that passes the command line to child processes."""


_building = False


def remember() -> None:
    """Record this process's command line in the environment. It can be pasted into a shell; secrets are redacted."""
    global _building
    _building = False
    # In the environment, because the processes of a stage and the jobs of a sweep inherit it.
    os.environ[COMMAND] = shlex.join([*program(), *redacted_arguments(sys.argv[1:])])


def add_arguments(arguments: Sequence[str]) -> None:
    """Append arguments that the environment adds to the command, so that the recorded command works without it."""
    if arguments:
        os.environ[COMMAND] = f"{command_line()} {shlex.join(arguments)}"


def command_line() -> str:
    """Return the command line that started this process or its parents; empty if Python code started it."""
    return os.environ.get(COMMAND, "")


def start_building() -> None:
    """Record that a stage is being built: errors from here on are not reported with "nothing was run"."""
    global _building
    _building = True


def building() -> bool:
    """Return True if this process has started to build a stage."""
    return _building


def program() -> list[str]:
    """Return `rlhf-lab` if the user typed that, else `python -m rlhf_lab`; under torchrun, torchrun with options."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        processes = int(os.environ["WORLD_SIZE"])
        # torchrun exports the world size but not its own options, so they are reconstructed.
        per_machine = int(os.environ["LOCAL_WORLD_SIZE"])
        machines = f"--nnodes={processes // per_machine}" if processes > per_machine else "--standalone"
        return ["torchrun", machines, f"--nproc_per_node={per_machine}", "-m", "rlhf_lab"]
    if Path(sys.argv[0]).name == "rlhf-lab":
        return ["rlhf-lab"]
    return ["python", "-m", "rlhf_lab"]
