"""Tools that are busy at random: the same call may succeed later."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from typing import Any

from rlhf_lab.core.tools import Tool, ToolError

BUSY = "busy"
"""Result of calling a busy tool."""


def flaky(tool: Tool, probability: float, seed: int | str) -> Tool:
    """Make a tool busy with a given probability at each call.

    The seed and the index of the call decide which calls fail. Attempts with the same calls therefore see the same
    failures; use different seeds for independent failures.
    """
    calls = 0

    def run(**arguments: Any) -> str:
        nonlocal calls
        calls += 1
        if uniform(f"{seed}/{tool.name}/{calls}") < probability:
            raise ToolError(BUSY)
        return tool.run(**arguments)

    return replace(tool, run=run)


def uniform(key: str) -> float:
    """Hash a text to a number in [0, 1)."""
    # A hash and not `random`, so that the result depends on the text alone, on every machine.
    digest = blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
