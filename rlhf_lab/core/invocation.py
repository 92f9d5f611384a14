"""The command that is running: its command line, which everything that it starts records, and whether it builds yet."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from rlhf_lab.core.redaction import redacted_arguments

COMMAND = "RLHF_LAB_COMMAND"
"""Environment variable that carries the command line to the processes that it starts."""


_building = False


def remember() -> None:
    """Record this process's command line in the environment, ready to paste into a shell but for its secrets."""
    global _building
    _building = False
    os.environ[COMMAND] = shlex.join([*_program(), *redacted_arguments(sys.argv[1:])])


def command_line() -> str:
    """The command line that started this process or those above it; empty where Python code did."""
    return os.environ.get(COMMAND, "")


def begin_building() -> None:
    """Record that a stage is being built: a problem from here on is not reported with "nothing was run"."""
    global _building
    _building = True


def building() -> bool:
    """Whether this process has begun to build a stage."""
    return _building


def _program() -> list[str]:
    """`rlhf-lab` where that was typed, else `python -m rlhf_lab`; below torchrun, torchrun with its processes."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        processes = int(os.environ["WORLD_SIZE"])
        per_machine = int(os.environ["LOCAL_WORLD_SIZE"])
        machines = f"--nnodes={processes // per_machine}" if processes > per_machine else "--standalone"
        return ["torchrun", machines, f"--nproc_per_node={per_machine}", "-m", "rlhf_lab"]
    if Path(sys.argv[0]).name == "rlhf-lab":
        return ["rlhf-lab"]
    return ["python", "-m", "rlhf_lab"]
