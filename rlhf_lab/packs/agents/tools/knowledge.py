"""Facts that can only be looked up: a base of them, and the tools that read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlhf_lab.core.tools import Tool, ToolError, text_tool
from rlhf_lab.environments.maths.expressions import computed

LONGEST_EXPRESSION = 500
"""Characters. The numbers of a shorter one, and their product, are written in digits that Python converts."""
MOVED = "moved see {}"
"""What a search gives for an entity whose entry lies under another name."""


@dataclass(frozen=True)
class KnowledgeBase:
    """Attributes:
    facts: entity → relation → value.
    moved: entity → the entity under which its facts are found.
    """

    facts: Mapping[str, Mapping[str, str]]
    moved: Mapping[str, str] = field(default_factory=dict)

    def search(self, entity: str, relation: str) -> str:
        """The value, or where to look instead. Raises ToolError where there is no such entry."""
        if entity in self.moved:
            return MOVED.format(self.moved[entity])
        relations = self.facts.get(entity)
        if relations is None:
            raise ToolError(f"no entry for {entity}")
        if relation not in relations:
            raise ToolError(f"{entity} has no {relation}")
        return relations[relation]


def search_tool(base: KnowledgeBase) -> Tool:
    return text_tool(
        "search",
        "Looks up one fact about one entity. May name another entity under which the fact is found.",
        {"entity": "the name, exactly as it is written", "relation": "what to look up, such as capital"},
        base.search,
    )


def calculate(expression: str) -> str:
    """The exact value of a sum, difference, product or quotient. Raises ToolError where it is none."""
    if len(expression) > LONGEST_EXPRESSION:
        raise ToolError(f"the expression is longer than {LONGEST_EXPRESSION} characters; split it")
    value = computed(expression)
    if value is None:
        raise ToolError(f"{expression!r} is no expression; write numbers, + - * / and parentheses")
    return value


def calculator_tool() -> Tool:
    return text_tool("calculate", "Computes an expression.", {"expression": "such as (12 + 30) * 2"}, calculate)
