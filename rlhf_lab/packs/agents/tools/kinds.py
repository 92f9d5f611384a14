"""Catalogue of tasks that need tools: each kind is a function that samples one task.

A task has a question, the steps that lead to its answer, and the answer. The answer is computed from the true facts and
not with the tools. `demonstrations.py` executes the steps with the tools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Literal

from rlhf_lab.core.tools import Tool, ToolError, text_tool
from rlhf_lab.packs.agents.tools.bases import LARGEST, FactBase, draw_base
from rlhf_lab.packs.agents.tools.knowledge import ToolKnowledge, calculator_tool, flaky, search_tool
from rlhf_lab.packs.agents.tools.settings import Tools

UNKNOWN = "unknown"
"""Answer to a question that the tools cannot answer."""

FLAKY = 0.3
"""Probability that a tool of the kind `flaky` is busy."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """Step that looks up a relation of an entity.

    Attributes:
        subject: the entity, or the index of the step whose value it is.
        relation: the relation.
        tool: search, archive, retrieve or table.
    """

    subject: str | int
    relation: str
    tool: str = "search"


@dataclass(frozen=True, slots=True)
class Compute:
    """Step that combines the values of the first two steps."""

    sign: Literal["+", "-"]


@dataclass(frozen=True)
class SampledTask:
    """One task.

    Attributes:
        question: the question.
        base: the facts.
        steps: a shortest sequence of steps to the answer, without redirects.
        answer: the right answer.
        scorer: name of the scorer, which decides which other answers count as right.
        gives: origin of the answer: the last value; the subject with the larger value; all values; or nothing, because
            a step fails.
        parts: self-contained questions whose answers together answer this one; empty if it cannot be split.
        busy: probability that a call of a tool fails.
        archive: a second source that contradicts the first; None if there is none.
        table: cells of a table by row and column; None if there is none.
        passages: True if there is a tool that returns all facts of an entity at once.
    """

    question: str
    base: FactBase
    steps: tuple[Lookup | Compute, ...]
    answer: str
    scorer: str = "exact"
    gives: Literal["last", "larger", "all", "nothing"] = "last"
    parts: tuple[str, ...] = ()
    busy: float = 0.0
    archive: ToolKnowledge | None = None
    table: Mapping[str, Mapping[str, str]] | None = None
    passages: bool = False


Draw = Callable[[Random, str, Tools], SampledTask]
"""Function that samples a task: (random numbers, split, settings of the world) → task."""


def chain(rng: Random, split: str, size: Tools, hops: int, moves: int = 0) -> SampledTask:
    """Sample a question that follows `hops` relations from one entity. A relation never follows itself."""
    base = draw_base(rng, split, size, moves=moves)
    start = base.entities[0]
    relations = _draw_relations(rng, base.links, hops)
    # The answer comes from the true facts, along the relations of the question.
    value = start
    for relation in relations:
        value = base.truth[value][relation]
    first = Lookup(start, relations[0])
    later = [Lookup(index, relation) for index, relation in enumerate(relations[1:])]
    onward = "".join(f", then its {relation}" for relation in relations[1:])
    question = f"Find the {relations[0]} of {start}{onward}."
    return SampledTask(question, base, (first, *later), value)


def find(relation: str, entity: str) -> str:
    return f"Find the {relation} of {entity}."


def _draw_relations(rng: Random, relations: tuple[str, ...], count: int) -> list[str]:
    if count <= len(relations):
        return rng.sample(relations, count)
    # A chain longer than the number of relations repeats some of them, but none directly after itself.
    selected: list[str] = []
    while len(selected) < count:
        candidates = [relation for relation in relations if relation not in selected[-1:]]
        selected.append(rng.choice(candidates))
    return selected


def long_chain(rng: Random, split: str, size: Tools) -> SampledTask:
    return chain(rng, split, size, rng.randint(6, 10))


def calculation(rng: Random, split: str, size: Tools, sign: Literal["+", "-"]) -> SampledTask:
    """Sample a question for the sum or the difference of two amounts."""
    base = draw_base(rng, split, size)
    relation = base.amounts[0]
    entities = rng.sample(base.entities, 2)
    # The larger amount comes first, so that a difference is never negative.
    by_amount = sorted(entities, key=lambda entity: -int(base.truth[entity][relation]))
    first, second = by_amount
    amounts = _amounts(base, relation, first, second)
    if sign == "+":
        answer, between = sum(amounts), "plus"
    else:
        answer, between = amounts[0] - amounts[1], "minus"
    return SampledTask(
        f"Compute the {relation} of {first} {between} the {relation} of {second}.",
        base,
        (Lookup(first, relation), Lookup(second, relation), Compute(sign)),
        str(answer),
        parts=(find(relation, first), find(relation, second)),
    )


def _amounts(base: FactBase, relation: str, *entities: str) -> list[int]:
    return [int(base.truth[entity][relation]) for entity in entities]


def compare(rng: Random, split: str, size: Tools) -> SampledTask:
    """Sample a question that compares two different amounts."""
    # Equal amounts have no answer, so the base is sampled again.
    while True:
        base = draw_base(rng, split, size)
        relation = base.amounts[0]
        first, second = rng.sample(base.entities, 2)
        amounts = _amounts(base, relation, first, second)
        if amounts[0] != amounts[1]:
            break
    larger = first if amounts[0] > amounts[1] else second
    return SampledTask(
        f"Which has the larger {relation}, {first} or {second}?",
        base,
        (Lookup(first, relation), Lookup(second, relation)),
        larger,
        gives="larger",
        parts=(find(relation, first), find(relation, second)),
    )


def missing_entity(rng: Random, split: str, size: Tools) -> SampledTask:
    base = draw_base(rng, split, size)
    name = base.spare[0]
    relation = rng.choice(base.links)
    return _unanswerable(base, Lookup(name, relation), find(relation, name))


def _unanswerable(base: FactBase, step: Lookup, question: str) -> SampledTask:
    """Return a task whose only step fails, so that a refusal is the right answer."""
    return SampledTask(question, base, (step,), UNKNOWN, scorer="refusal", gives="nothing")


def missing_relation(rng: Random, split: str, size: Tools) -> SampledTask:
    """Sample a question about a relation that is missing for an existing entity."""
    base = draw_base(rng, split, size)
    start = base.entities[0]
    relation = rng.choice(base.links)
    # The relation is removed from all entities, so that no tool can return it.
    remaining = {
        name: {key: value for key, value in facts.items() if key != relation}
        for name, facts in base.knowledge.facts.items()
    }
    base = replace(base, knowledge=replace(base.knowledge, facts=remaining))
    return _unanswerable(base, Lookup(start, relation), find(relation, start))


def ambiguous(rng: Random, split: str, size: Tools) -> SampledTask:
    """Sample a question about one of two entities whose names share the first word; a fact identifies which one."""
    base = draw_base(rng, split, size, paired_bases=True)
    first, second = base.paired_bases
    known, requested = rng.sample(base.links, 2)
    # The fact that identifies the entity has to differ between the two.
    while base.truth[first][known] == base.truth[second][known]:
        return ambiguous(rng, split, size)
    meant = rng.choice(base.paired_bases)
    half = first.split()[0]
    fact = base.truth[meant][known]
    question = f"Of {first} and {second}, take the {half} whose {known} is {fact}. Find its {requested}."
    return SampledTask(
        question,
        base,
        # The first step identifies the entity; the answer needs the second one only.
        (Lookup(first, known), Lookup(meant, requested)),
        base.truth[meant][requested],
    )


def conflicting(rng: Random, split: str, size: Tools) -> SampledTask:
    """Sample a question for which two sources contradict each other; the question says which one is right."""
    base = draw_base(rng, split, size)
    start = base.entities[0]
    relation = rng.choice(base.links)
    right = base.truth[start][relation]
    others = [name for name in base.entities if name not in (start, right)]
    contrary = rng.choice(others)
    # The archive has the true facts under their own names, except for the contradicting one.
    archived = {**base.truth[start], relation: contrary}
    archive = ToolKnowledge({**base.truth, start: archived})
    source = rng.choice(("search", "archive"))
    answer = contrary if source == "archive" else right
    return SampledTask(
        f"{find(relation, start)} The {source} is right.",
        base,
        (Lookup(start, relation, source),),
        answer,
        archive=archive,
    )


def busy(rng: Random, split: str, size: Tools) -> SampledTask:
    return replace(chain(rng, split, size, 2), busy=FLAKY)


def table(rng: Random, split: str, size: Tools) -> SampledTask:
    """Sample a question for the sum of two cells of a table."""
    base = draw_base(rng, split, size)
    column = base.amounts[0]
    rows = {str(row): {column: str(rng.randint(2, LARGEST))} for row in range(1, size.entities + 1)}
    first, second = rng.sample(list(rows), 2)
    amounts = [int(rows[row][column]) for row in (first, second)]
    return SampledTask(
        f"Compute the {column} in row {first} of the table plus the {column} in row {second}.",
        base,
        (Lookup(first, column, "table"), Lookup(second, column, "table"), Compute("+")),
        str(sum(amounts)),
        table=rows,
        parts=(f"Find the {column} in row {first} of the table.", f"Find the {column} in row {second} of the table."),
    )


def retrieval(rng: Random, split: str, size: Tools) -> SampledTask:
    """Sample a question with two steps: a retrieved passage names an entity, and a fact about it is looked up."""
    task = chain(rng, split, size, 2)
    first = task.steps[0]
    assert isinstance(first, Lookup)
    steps = (replace(first, tool="retrieve"), *task.steps[1:])
    question = f"Read about it first. {task.question}"
    return replace(task, question=question, steps=steps, passages=True)


def two_part_question(rng: Random, split: str, size: Tools) -> SampledTask:
    """Sample two questions in one; the answer names both values."""
    base = draw_base(rng, split, size)
    first, second = rng.sample(base.entities, 2)
    relation, other = rng.sample(base.links, 2)
    values = [base.truth[first][relation], base.truth[second][other]]
    return SampledTask(
        f"Find the {relation} of {first} and the {other} of {second}.",
        base,
        (Lookup(first, relation), Lookup(second, other)),
        ", ".join(values),
        gives="all",
        parts=(find(relation, first), find(other, second)),
    )


# The names are values of the setting `kinds` and appear in stored results, so they must not change.
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
    "several": two_part_question,
}
"""The 17 kinds of the catalogue."""

LENGTHS = range(4, 11)
CHAINS: Mapping[str, Draw] = {f"chain_{hops}": partial(chain, hops=hops) for hops in LENGTHS}
"""Kinds of tasks that need a fixed number of lookups, one kind per number, for studies of the length of chains."""

ALL_KINDS: Mapping[str, Draw] = {**KINDS, **CHAINS}


def tools_of(task: SampledTask, seed: int | str) -> list[Tool]:
    """Create the tools of one attempt at a task. Their state is not shared with other attempts."""
    # Every task has search and calculator; the other tools exist only if the task has content for them.
    tools = [search_tool(task.base.knowledge), calculator_tool()]
    if task.archive is not None:
        description = "Looks up one fact in the archive, which may differ from search."
        tools.append(replace(search_tool(task.archive), name="archive", description=description))
    if task.table is not None:
        tools.append(table_tool(task.table))
    if task.passages:
        tools.append(retrieve_tool(task.base.knowledge))
    if not task.busy:
        return tools
    return [flaky(tool, task.busy, seed) for tool in tools]


def table_tool(cells: Mapping[str, Mapping[str, str]]) -> Tool:
    def run(row: str, column: str) -> str:
        if row not in cells:
            raise ToolError(f"no row {row}")
        if column not in cells[row]:
            raise ToolError(f"no column {column}")
        return cells[row][column]

    return text_tool("table", "Reads one cell of the table.", {"row": "its number", "column": "its heading"}, run)


def retrieve_tool(base: ToolKnowledge) -> Tool:
    def run(entity: str) -> str:
        if entity in base.moved:
            # The relation is irrelevant for a redirect.
            return base.search(entity, "")
        if entity not in base.facts:
            raise ToolError(f"no entry for {entity}")
        facts = base.facts[entity]
        written = [f"{relation} {value}" for relation, value in facts.items()]
        return ", ".join(written)

    return text_tool("retrieve", "Gives the passage about an entity.", {"entity": "the name, exactly as written"}, run)
