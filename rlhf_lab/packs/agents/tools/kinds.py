"""The catalogue: kinds of tasks that need tools, each a function that draws one task.

A task is a question, the steps that lead to its answer, and the answer, which is read off the truth and not off the
tools. `demonstrations.py` takes the steps through the tools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Literal

from rlhf_lab.core.tools import Tool, ToolError, text_tool
from rlhf_lab.packs.agents.tools.bases import LARGEST, BaseSize, FactBase, draw_base
from rlhf_lab.packs.agents.tools.flaky import flaky
from rlhf_lab.packs.agents.tools.knowledge import KnowledgeBase, calculator_tool, search_tool

UNKNOWN = "unknown"
"""The answer to a question that the tools cannot answer."""

FLAKY = 0.3
"""How often the tools of the kind `flaky` are busy."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """Look up a relation of an entity.

    Attributes:
        subject: the entity, or the number of the step whose value it is.
        tool: search, archive, retrieve or table.
    """

    subject: str | int
    relation: str
    tool: str = "search"


@dataclass(frozen=True, slots=True)
class Compute:
    """Combine the values of the first two steps."""

    sign: Literal["+", "-"]


@dataclass(frozen=True)
class DrawnTask:
    """One task.

    Attributes:
        question: as it is asked.
        base: the facts it is about.
        steps: a shortest way, redirects aside.
        answer: the right one; `scorer` says what else counts.
        gives: what the answer is made of: the last value; the subject with the larger value; all values; or nothing,
            because a step fails.
        parts: questions that can be answered by themselves and together answer this one; itself where there are none.
        busy: probability that a call of a tool fails.
        archive: a second source that contradicts the first; None where there is none.
        table: the cells of a table by row and column; empty where there is none.
        passages: whether there is a tool that gives all facts of an entity at once.
    """

    question: str
    base: FactBase
    steps: tuple[Lookup | Compute, ...]
    answer: str
    scorer: str = "exact"
    gives: Literal["last", "larger", "all", "nothing"] = "last"
    parts: tuple[str, ...] = ()
    busy: float = 0.0
    archive: KnowledgeBase | None = None
    table: Mapping[str, Mapping[str, str]] | None = None
    passages: bool = False


Draw = Callable[[Random, str, BaseSize], DrawnTask]
"""(random numbers, split, size of the base) → a task."""


def chain(rng: Random, split: str, size: BaseSize, hops: int, moves: int = 0) -> DrawnTask:
    """From one entity along `hops` relations. No relation follows itself."""
    base = draw_base(rng, split, size, moves=moves)
    start = base.entities[0]
    relations = _draw_relations(rng, base.links, hops)
    value = start
    for relation in relations:
        value = base.truth[value][relation]
    steps = (
        Lookup(start, relations[0]),
        *(Lookup(number, relation) for number, relation in enumerate(relations[1:])),
    )
    onward = "".join(f", then its {relation}" for relation in relations[1:])
    return DrawnTask(f"Find the {relations[0]} of {start}{onward}.", base, steps, value)


def _draw_relations(rng: Random, relations: tuple[str, ...], count: int) -> list[str]:
    if count <= len(relations):
        return rng.sample(relations, count)
    drawn: list[str] = []
    while len(drawn) < count:
        drawn.append(rng.choice([relation for relation in relations if relation not in drawn[-1:]]))
    return drawn


def long_chain(rng: Random, split: str, size: BaseSize) -> DrawnTask:
    return chain(rng, split, size, rng.randint(6, 10))


def calculation(rng: Random, split: str, size: BaseSize, sign: Literal["+", "-"]) -> DrawnTask:
    """The sum or the difference of two amounts."""
    base = draw_base(rng, split, size)
    relation = base.amounts[0]
    entities = rng.sample(base.entities, 2)
    first, second = sorted(entities, key=lambda entity: -int(base.truth[entity][relation]))
    amounts = [int(base.truth[entity][relation]) for entity in (first, second)]
    answer = sum(amounts) if sign == "+" else amounts[0] - amounts[1]
    between = "plus" if sign == "+" else "minus"
    return DrawnTask(
        f"Compute the {relation} of {first} {between} the {relation} of {second}.",
        base,
        (Lookup(first, relation), Lookup(second, relation), Compute(sign)),
        str(answer),
        parts=(f"Find the {relation} of {first}.", f"Find the {relation} of {second}."),
    )


def compare(rng: Random, split: str, size: BaseSize) -> DrawnTask:
    """Which of two entities has more of an amount; they never have the same."""
    while True:
        base = draw_base(rng, split, size)
        relation = base.amounts[0]
        first, second = rng.sample(base.entities, 2)
        amounts = [int(base.truth[entity][relation]) for entity in (first, second)]
        if amounts[0] != amounts[1]:
            break
    return DrawnTask(
        f"Which has the larger {relation}, {first} or {second}?",
        base,
        (Lookup(first, relation), Lookup(second, relation)),
        first if amounts[0] > amounts[1] else second,
        gives="larger",
        parts=(f"Find the {relation} of {first}.", f"Find the {relation} of {second}."),
    )


def missing_entity(rng: Random, split: str, size: BaseSize) -> DrawnTask:
    """There is no such entity."""
    base = draw_base(rng, split, size)
    name = base.spare[0]
    relation = rng.choice(base.links)
    steps = (Lookup(name, relation),)
    return DrawnTask(f"Find the {relation} of {name}.", base, steps, UNKNOWN, scorer="refusal", gives="nothing")


def missing_relation(rng: Random, split: str, size: BaseSize) -> DrawnTask:
    """There is such an entity, and nobody wrote down this fact of it."""
    base = draw_base(rng, split, size)
    start = base.entities[0]
    relation = rng.choice(base.links)
    filed = base.knowledge.facts
    kept = {name: {key: value for key, value in facts.items() if key != relation} for name, facts in filed.items()}
    base = replace(base, knowledge=replace(base.knowledge, facts=kept))
    steps = (Lookup(start, relation),)
    return DrawnTask(f"Find the {relation} of {start}.", base, steps, UNKNOWN, scorer="refusal", gives="nothing")


def ambiguous(rng: Random, split: str, size: BaseSize) -> DrawnTask:
    """Half a name fits two entities, and a fact says which is meant."""
    base = draw_base(rng, split, size, twins=True)
    first, second = base.twins
    known, asked = rng.sample(base.links, 2)
    # what tells the two apart has to differ
    while base.truth[first][known] == base.truth[second][known]:
        return ambiguous(rng, split, size)
    meant = rng.choice(base.twins)
    half = first.split()[0]
    fact = base.truth[meant][known]
    return DrawnTask(
        f"Of {first} and {second}, take the {half} whose {known} is {fact}. Find its {asked}.",
        base,
        (Lookup(first, known), Lookup(meant, asked)),
        base.truth[meant][asked],
    )


def conflicting(rng: Random, split: str, size: BaseSize) -> DrawnTask:
    """Two sources contradict each other, and the question says which counts."""
    base = draw_base(rng, split, size)
    start = base.entities[0]
    relation = rng.choice(base.links)
    others = [name for name in base.entities if name not in (start, base.truth[start][relation])]
    contrary = rng.choice(others)
    archive = KnowledgeBase({**base.truth, start: {**base.truth[start], relation: contrary}})
    source = rng.choice(("search", "archive"))
    answer = contrary if source == "archive" else base.truth[start][relation]
    question = f"Find the {relation} of {start}. The {source} is right."
    return DrawnTask(question, base, (Lookup(start, relation, source),), answer, archive=archive)


def busy(rng: Random, split: str, size: BaseSize) -> DrawnTask:
    """A chain of two with tools that are often busy."""
    return replace(chain(rng, split, size, 2), busy=FLAKY)


def table(rng: Random, split: str, size: BaseSize) -> DrawnTask:
    """Two cells of a table, and their sum."""
    base = draw_base(rng, split, size)
    column = base.amounts[0]
    rows = {str(row): {column: str(rng.randint(2, LARGEST))} for row in range(1, size.entities + 1)}
    first, second = rng.sample(list(rows), 2)
    total = int(rows[first][column]) + int(rows[second][column])
    return DrawnTask(
        f"Compute the {column} in row {first} of the table plus the {column} in row {second}.",
        base,
        (Lookup(first, column, "table"), Lookup(second, column, "table"), Compute("+")),
        str(total),
        table=rows,
        parts=(f"Find the {column} in row {first} of the table.", f"Find the {column} in row {second} of the table."),
    )


def retrieval(rng: Random, split: str, size: BaseSize) -> DrawnTask:
    """A fact in a passage, then a fact about that one."""
    task = chain(rng, split, size, 2)
    first = task.steps[0]
    assert isinstance(first, Lookup)
    steps = (replace(first, tool="retrieve"), *task.steps[1:])
    return replace(task, question=f"Read about it first. {task.question}", steps=steps, passages=True)


def several(rng: Random, split: str, size: BaseSize) -> DrawnTask:
    """Two questions in one; the answer names both values."""
    base = draw_base(rng, split, size)
    first, second = rng.sample(base.entities, 2)
    relations = rng.sample(base.links, 2)
    values = [base.truth[first][relations[0]], base.truth[second][relations[1]]]
    return DrawnTask(
        f"Find the {relations[0]} of {first} and the {relations[1]} of {second}.",
        base,
        (Lookup(first, relations[0]), Lookup(second, relations[1])),
        ", ".join(values),
        gives="all",
        parts=(f"Find the {relations[0]} of {first}.", f"Find the {relations[1]} of {second}."),
    )


KINDS: Mapping[str, Draw] = {
    "lookup": partial(chain, hops=1),
    "chain_2": partial(chain, hops=2),
    "chain_3": partial(chain, hops=3),
    "long_chain": long_chain,
    "sum": partial(calculation, sign="+"),
    "difference": partial(calculation, sign="-"),
    "compare": compare,
    "redirected": partial(chain, hops=2, moves=1),
    "twice_redirected": partial(chain, hops=2, moves=2),
    "missing_entity": missing_entity,
    "missing_relation": missing_relation,
    "ambiguous": ambiguous,
    "conflicting": conflicting,
    "flaky": busy,
    "table": table,
    "retrieval": retrieval,
    "several": several,
}
"""The 17 kinds of the catalogue."""

CHAINS: Mapping[str, Draw] = {f"chain_{hops}": partial(chain, hops=hops) for hops in range(4, 11)}
"""Chains of one length each, for studies of length."""

ALL_KINDS: Mapping[str, Draw] = {**KINDS, **CHAINS}


def tools_of(task: DrawnTask, seed: int | str) -> list[Tool]:
    """The tools of one attempt at a task, with a state of its own."""
    tools = [search_tool(task.base.knowledge), calculator_tool()]
    if task.archive is not None:
        tools.append(archive_tool(task.archive))
    if task.table is not None:
        tools.append(table_tool(task.table))
    if task.passages:
        tools.append(retrieve_tool(task.base.knowledge))
    return [flaky(tool, task.busy, seed) for tool in tools] if task.busy else tools


def archive_tool(base: KnowledgeBase) -> Tool:
    meaning = {"entity": "the name, exactly as it is written", "relation": "what to look up, such as capital"}
    return text_tool("archive", "Looks up one fact in the archive, which may differ from search.", meaning, base.search)


def table_tool(cells: Mapping[str, Mapping[str, str]]) -> Tool:
    def run(row: str, column: str) -> str:
        if row not in cells:
            raise ToolError(f"no row {row}")
        if column not in cells[row]:
            raise ToolError(f"no column {column}")
        return cells[row][column]

    return text_tool("table", "Reads one cell of the table.", {"row": "its number", "column": "its heading"}, run)


def retrieve_tool(base: KnowledgeBase) -> Tool:
    def run(entity: str) -> str:
        if entity in base.moved:
            return base.search(entity, "")
        if entity not in base.facts:
            raise ToolError(f"no entry for {entity}")
        return ", ".join(f"{relation} {value}" for relation, value in base.facts[entity].items())

    return text_tool("retrieve", "Gives the passage about an entity.", {"entity": "the name, exactly as written"}, run)
