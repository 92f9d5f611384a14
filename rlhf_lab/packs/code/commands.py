"""The sub-command `sandbox`. Every command reads this module, so it imports the sandbox when run."""

from __future__ import annotations

from collections.abc import Sequence


def sandbox_command(arguments: Sequence[str]) -> None:
    """`sandbox [probes=true] [level=… to=FILE.json]`: report how well this machine isolates model-written programs.

    Prints which levels of isolation work, why the others do not, and the time of a run. `probes=true` attacks each
    working level (or the level of `level`) with programs that try to escape, and prints what stopped them. It takes two
    minutes. `to` is a JSON file for the same results.
    """
    from rlhf_lab.packs.code.sandbox.command import run

    run(arguments)
