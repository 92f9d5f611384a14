"""The sub-command of the sandbox."""

from __future__ import annotations

from collections.abc import Sequence


def sandbox_command(arguments: Sequence[str]) -> None:
    """`sandbox [probes=true] [level=… to=FILE.json]`: how well this machine isolates the programs that a model writes.

    Says which levels of isolation work here, why others do not, and what a run costs. `probes=true` attacks each level
    that works (or the one of `level`) with programs that try to get out, and prints what stopped them; two minutes.
    `to` is a file for the same as JSON.
    """
    from rlhf_lab.packs.code.sandbox.command import run

    run(arguments)
