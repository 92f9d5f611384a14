"""Fixtures of a task: the content of its tools, and their faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, NotRequired, TypedDict

from rlhf_lab.core.tools import Tool, ToolError, text_tool
from rlhf_lab.packs.agents.tools.knowledge import ToolKnowledge, calculator_tool, hashed
from rlhf_lab.packs.agents.tools.retrieval import PassageIndex, retrieval_tool
from rlhf_lab.packs.agents.tools.table import DataTable, TableBase, table_tools

BUSY = "busy: {} did not answer; the same call may work when it is tried again"
UNAVAILABLE = "{} is out of service today; trying again does not help"
SIMILARITY = 0.75
"""Minimum similarity (ratio of difflib) of a name that is suggested."""


class Fixture(TypedDict):
    """Content of the tools of one task, as JSON values. A tool exists only if there is content for it.

    Keys:
        facts, moved: content of `search`, see `ToolKnowledge`.
        passages: content of `retrieve`: title → text.
        tables: content of `schema` and `sql`: name → table.
        busy: tool → maximum number of consecutive times that the same call finds it busy.
        unavailable: tools that never answer.
    """

    facts: NotRequired[dict[str, dict[str, str]]]
    moved: NotRequired[dict[str, str]]
    passages: NotRequired[dict[str, str]]
    tables: NotRequired[dict[str, DataTable]]
    busy: NotRequired[dict[str, int]]
    unavailable: NotRequired[list[str]]


def fixture_tools(fixture: Fixture, seed: int) -> list[Tool]:
    """Create tools with their own state. The seed decides which calls find a tool busy."""
    tools: list[Tool] = []
    if "facts" in fixture:
        knowledge = ToolKnowledge(fixture["facts"], fixture.get("moved", {}))
        tools.append(suggesting_search(knowledge))
    if "passages" in fixture:
        tools.append(retrieval_tool(PassageIndex(fixture["passages"])))
    if "tables" in fixture:
        tools += table_tools(TableBase(fixture["tables"]))
    # The calculator needs no content, so every task has it.
    tools.append(calculator_tool())
    busy, unavailable = fixture.get("busy", {}), fixture.get("unavailable", [])
    faulty = []
    for tool in tools:
        if tool.name in busy:
            tool = make_busy(tool, busy[tool.name], seed)
        if tool.name in unavailable:
            tool = make_unavailable(tool)
        faulty.append(tool)
    return faulty


def suggesting_search(base: ToolKnowledge) -> Tool:
    """Return the tool `search`, which suggests similar names, so that an agent can correct a misspelt name."""
    names = [*base.facts, *base.moved]
    by_small_letters = {name.casefold(): name for name in names}

    def search(entity: str, relation: str) -> str:
        try:
            return base.search(str(entity), str(relation))
        except ToolError as error:
            if entity in base.facts:  # the entity exists, so the relation is missing
                known = ", ".join(base.facts[entity])
                raise ToolError(f"{error}; known: {known}") from None
            similar = similar_names(str(entity).casefold(), by_small_letters)
            if not similar:
                raise ToolError(str(error)) from None
            raise ToolError(f"{error}; similar names: {', '.join(similar)}") from None

    return text_tool(
        "search",
        "Looks up one fact about one entity. May name another entry under which the fact is found.",
        {"entity": "the name, exactly as the entry writes it", "relation": "what to look up, such as capital"},
        search,
    )


def similar_names(entity: str, by_small_letters: Mapping[str, str]) -> list[str]:
    """Return names that start with the entity ("Orlun (river)" for "orlun"), else similarly spelt ones, best first."""
    longer = []
    for small, name in by_small_letters.items():
        # The space keeps "Orlunda" from matching "orlun"; a misspelling of that kind is found below.
        if small == entity or small.startswith(f"{entity} "):
            longer.append(name)
    if longer:
        return longer
    matches = get_close_matches(entity, by_small_letters, 3, SIMILARITY)
    return [by_small_letters[small] for small in matches]


def make_busy(tool: Tool, limit: int, seed: int) -> Tool:
    """Return a tool that fails as busy for the first 0 to `limit` times that a call is made, and then succeeds."""
    tries: dict[str, int] = {}

    def run(**arguments: Any) -> str:
        key = f"{seed} {tool.name} {sorted(arguments.items())}"
        tries[key] = tries.get(key, 0) + 1
        # A hash of the call decides, so that the number does not depend on earlier calls.
        if tries[key] <= hashed(key) % (limit + 1):
            raise ToolError(BUSY.format(tool.name))
        return tool.run(**arguments)

    return replace(tool, run=run)


def make_unavailable(tool: Tool) -> Tool:
    def run(**arguments: Any) -> str:
        raise ToolError(UNAVAILABLE.format(tool.name))

    return replace(tool, run=run)


def fixture_values(fixture: Fixture) -> list[str]:
    """Return all values that the tools can return, without duplicates: facts, and cells of tables."""
    values: list[str] = []
    for relations in fixture.get("facts", {}).values():
        values += relations.values()
    for table in fixture.get("tables", {}).values():
        values += [str(cell) for row in table["rows"] for cell in row if cell is not None]
    # The order matters: scripted agents choose from these values at random.
    return list(dict.fromkeys(values))
