"""Facts that can only be looked up, the tools that read them, and tools that are busy at random."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from rlhf_lab.core.tools import Tool, ToolError, text_tool
from rlhf_lab.environments.maths.expressions import computed

LONGEST_EXPRESSION = 500
"""Maximum number of characters of an expression. Its numbers and their product stay short enough for Python's limit on
converting integers to text."""
DECIMALS = 10
"""Number of decimals of the calculator's results. More decimals would show rounding errors; with too few, 4 / 1000
would be 0."""
BUSY = "busy"
"""Result of calling a busy tool."""
MOVED = "moved see {}"
"""Result of a search for an entity whose facts are stored under another name."""


@dataclass(frozen=True)
class ToolKnowledge:
    """Facts as the tools store them.

    Attributes:
        facts: entity → relation → value.
        moved: entity → other name under which its facts are stored.
    """

    facts: Mapping[str, Mapping[str, str]]
    moved: Mapping[str, str] = field(default_factory=dict)

    def search(self, entity: str, relation: str) -> str:
        """Return the value, or a redirect. Raise ToolError if there is no such entry."""
        # A redirect is a result and not an error: following it is part of the task.
        if entity in self.moved:
            return MOVED.format(self.moved[entity])
        relations = self.facts.get(entity)
        if relations is None:
            raise ToolError(f"no entry for {entity}")
        if relation not in relations:
            raise ToolError(f"{entity} has no {relation}")
        return relations[relation]


def search_tool(base: ToolKnowledge) -> Tool:
    return text_tool(
        "search",
        "Looks up one fact about one entity. May name another entity under which the fact is found.",
        {"entity": "the name, exactly as it is written", "relation": "what to look up, such as capital"},
        base.search,
    )


def calculate(expression: str) -> str:
    """Return the value of an expression to `DECIMALS` decimals. Raise ToolError if it has none."""
    if len(expression) > LONGEST_EXPRESSION:
        raise ToolError(f"the expression is longer than {LONGEST_EXPRESSION} characters; split it")
    value = computed(expression, DECIMALS)
    if value is None:
        raise ToolError(f"{expression!r} is no expression; write numbers, + - * / and parentheses")
    return value


def calculator_tool() -> Tool:
    return text_tool("calculate", "Computes an expression.", {"expression": "such as (12 + 30) * 2"}, calculate)


def flaky(tool: Tool, probability: float, seed: int | str) -> Tool:
    """Make a tool busy with a given probability at each call.

    The seed and the index of the call decide which calls fail. Attempts with the same calls therefore see the same
    failures; use different seeds for independent failures.
    """
    calls = 0

    def run(**arguments: Any) -> str:
        nonlocal calls
        calls += 1
        if hashed(f"{seed}/{tool.name}/{calls}") < probability * 2**64:
            raise ToolError(BUSY)
        return tool.run(**arguments)

    return replace(tool, run=run)


def hashed(key: str) -> int:
    """Hash a text to an integer below 2^64, which depends on the text alone, on every machine."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big")
