"""What the tools of one task hold, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from hashlib import blake2b
from typing import Any, NotRequired, TypedDict

from rlhf_lab.core.tools import Tool, ToolError, text_tool
from rlhf_lab.packs.agents.tools.knowledge import KnowledgeBase, calculator_tool
from rlhf_lab.packs.agents.tools.retrieval import PassageIndex, retrieval_tool
from rlhf_lab.packs.agents.tools.table import Cell, Table, TableBase, table_tools

BUSY = "busy: {} did not answer; the same call may work when it is tried again"
UNAVAILABLE = "{} is out of service today; trying again does not help"
SIMILARITY = 0.75
"""Least similarity of a name that is suggested (difflib's ratio)."""


class TableFixture(TypedDict):
    columns: list[str]
    rows: list[list[Cell]]


class Fixture(TypedDict):
    """What the tools of one task hold; JSON values. A tool is offered where there is something for it to read.

    Keys:
        facts, moved: of `search`, see `KnowledgeBase`.
        passages: of `retrieve`: title → text.
        tables: of `schema` and `sql`: name → table.
        busy: tool → how often in a row, at most, a call of it finds it busy.
        unavailable: tools that never answer.
    """

    facts: NotRequired[dict[str, dict[str, str]]]
    moved: NotRequired[dict[str, str]]
    passages: NotRequired[dict[str, str]]
    tables: NotRequired[dict[str, TableFixture]]
    busy: NotRequired[dict[str, int]]
    unavailable: NotRequired[list[str]]


def fixture_tools(fixture: Fixture, seed: int) -> list[Tool]:
    """Tools with a state of their own. The seed decides which calls find a tool busy."""
    tools: list[Tool] = []
    if "facts" in fixture:
        tools.append(suggesting_search(KnowledgeBase(fixture["facts"], fixture.get("moved", {}))))
    if "passages" in fixture:
        tools.append(retrieval_tool(PassageIndex(fixture["passages"])))
    if "tables" in fixture:
        tables = {name: Table(table["columns"], table["rows"]) for name, table in fixture["tables"].items()}
        tools += table_tools(TableBase(tables))
    tools.append(calculator_tool())
    busy, unavailable = fixture.get("busy", {}), fixture.get("unavailable", [])
    tools = [make_busy(tool, busy[tool.name], seed) if tool.name in busy else tool for tool in tools]
    return [make_unavailable(tool) if tool.name in unavailable else tool for tool in tools]


def suggesting_search(base: KnowledgeBase) -> Tool:
    """`search`, which names similar entries where there is none: a misspelt name can be put right."""
    names = [*base.facts, *base.moved]
    by_small_letters = {name.casefold(): name for name in names}

    def search(entity: str, relation: str) -> str:
        try:
            return base.search(str(entity), str(relation))
        except ToolError as error:
            if entity in base.facts:  # the relation is missing
                known = ", ".join(base.facts[entity])
                raise ToolError(f"{error}; known: {known}") from None
            similar = similar_names(str(entity).casefold(), by_small_letters)
            raise ToolError(f"{error}; similar names: {', '.join(similar)}" if similar else str(error)) from None

    return text_tool(
        "search",
        "Looks up one fact about one entity. May name another entry under which the fact is found.",
        {"entity": "the name, exactly as the entry writes it", "relation": "what to look up, such as capital"},
        search,
    )


def similar_names(entity: str, by_small_letters: Mapping[str, str]) -> list[str]:
    """Names that begin with the entity ("Orlun (river)" for "orlun"), else those spelt nearly alike, best first."""
    longer = [name for small, name in by_small_letters.items() if small.startswith(f"{entity} ") or small == entity]
    if longer:
        return longer
    return [by_small_letters[small] for small in get_close_matches(entity, by_small_letters, 3, SIMILARITY)]


def make_busy(tool: Tool, most: int, seed: int) -> Tool:
    """A tool that each call finds busy between 0 and `most` times in a row, before it answers."""
    tries: dict[str, int] = {}

    def run(**arguments: Any) -> str:
        key = f"{seed} {tool.name} {sorted(arguments.items())}"
        tries[key] = tries.get(key, 0) + 1
        # by a hash of the call: the same whatever was called before
        busy_times = int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big") % (most + 1)
        if tries[key] <= busy_times:
            raise ToolError(BUSY.format(tool.name))
        return tool.run(**arguments)

    return Tool(tool.name, tool.description, tool.parameters, run)


def make_unavailable(tool: Tool) -> Tool:
    def run(**arguments: Any) -> str:
        raise ToolError(UNAVAILABLE.format(tool.name))

    return Tool(tool.name, tool.description, tool.parameters, run)


def fixture_values(fixture: Fixture) -> list[str]:
    """Everything that the tools could give as a value, without repetitions: facts, and cells of tables."""
    values = [value for relations in fixture.get("facts", {}).values() for value in relations.values()]
    rows: Sequence[Sequence[Cell]] = [row for table in fixture.get("tables", {}).values() for row in table["rows"]]
    values += [str(cell) for row in rows for cell in row if cell is not None]
    return list(dict.fromkeys(values))
