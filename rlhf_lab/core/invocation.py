"""What one command is: its words as typed, which everything that it starts records, and whether it has built yet."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

COMMAND = "RLHF_LAB_COMMAND"
"""Environment variable that carries the command line to the processes that it starts."""


_building = False


def remember() -> None:
    """Keep this process's command line, ready to paste into a shell."""
    global _building
    _building = False
    os.environ[COMMAND] = shlex.join([*_program(), *sys.argv[1:]])


def command_line() -> str:
    """The command line that all this belongs to; empty where Python code started it."""
    return os.environ.get(COMMAND, "")


def begin_building() -> None:
    """Say that from here on files are written; problems that show later do not end a command that ran nothing."""
    global _building
    _building = True


def building() -> bool:
    """Whether this process has begun to build a stage."""
    return _building


def _program() -> list[str]:
    """`rlhf-lab` where that was typed, else `python -m rlhf_lab`; below torchrun, torchrun with its processes."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        count, per_machine = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
        machines = [f"--nnodes={count // per_machine}"] if count > per_machine else ["--standalone"]
        return ["torchrun", *machines, f"--nproc_per_node={per_machine}", "-m", "rlhf_lab"]
    if Path(sys.argv[0]).name == "rlhf-lab":
        return ["rlhf-lab"]
    return ["python", "-m", "rlhf_lab"]
