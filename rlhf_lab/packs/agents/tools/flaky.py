"""A tool that is sometimes busy: the same call may work a moment later."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from typing import Any

from rlhf_lab.core.tools import Tool, ToolError

BUSY = "busy"
"""What a call of a busy tool gives."""


def flaky(tool: Tool, probability: float, seed: int | str) -> Tool:
    """The tool, busy with a probability at each call.

    Which calls fail follows from the seed and the number of the call: an attempt that makes the same calls has the same
    luck. Attempts that should have luck of their own need seeds of their own.
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
    """A number in [0, 1) that follows from a text."""
    digest = blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
