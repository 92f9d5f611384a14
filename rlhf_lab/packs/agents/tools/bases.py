"""Bases of facts that are drawn anew for every task, so that nothing can be known by heart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from rlhf_lab.packs.agents.tools.knowledge import KnowledgeBase
from rlhf_lab.packs.agents.tools.names import draw_names, draw_twins

LINKS = ("capital", "ruler", "river", "port", "temple", "guild")
"""Relations whose values are names of the same base."""
AMOUNTS = ("age", "height")
"""Relations whose values are numbers."""
LARGEST = 30
"""Largest amount: a sum of two stays within numbers that a small vocabulary holds."""


@dataclass(frozen=True)
class FactBase:
    """What is true, and where it is found.

    Attributes:
        truth: entity → relation → value.
        links, amounts: the relations that this base has.
        knowledge: the same facts as they are filed: those of some entities lie under another name.
        spare: names that have no entry.
        twins: two entities whose names begin alike; empty where there are none.
    """

    truth: Mapping[str, Mapping[str, str]]
    links: tuple[str, ...]
    amounts: tuple[str, ...]
    knowledge: KnowledgeBase
    spare: tuple[str, ...]
    twins: tuple[str, ...] = ()

    @property
    def entities(self) -> tuple[str, ...]:
        return tuple(self.truth)


@dataclass(frozen=True)
class BaseSize:
    """Of the bases that are drawn.

    Attributes:
        entities, relations: in each base; one relation in four, at least one, is an amount.
        redirect: probability that an entity's facts lie under another name.
    """

    entities: int = 10
    relations: int = 5
    redirect: float = 0.25


def draw_base(rng: Random, split: str, size: BaseSize, *, moves: int = 0, twins: bool = False) -> FactBase:
    """A base of a split.

    Args:
        moves: how often the first entity's facts have moved; 0 leaves it to `size.redirect`.
        twins: whether the last two entities have names that begin alike.
    """
    amount_count = max(1, size.relations // 4)
    amounts = tuple(rng.sample(AMOUNTS, amount_count))
    links = tuple(rng.sample(LINKS, size.relations - amount_count))
    moved_entities = [rng.random() < size.redirect for _ in range(size.entities)]
    pair = draw_twins(rng, split) if twins else ()
    own = size.entities - len(pair)
    names = draw_names(rng, own + sum(moved_entities) + moves + 1, split, pair)
    entities = [*names[:own], *pair]
    others = names[own:]
    truth = {entity: _draw_facts(rng, entity, entities, links, amounts) for entity in entities}
    filed_under: dict[str, str] = {}
    moved: dict[str, str] = {}
    for number, entity in enumerate(entities):
        name = entity
        times = moves if moves and number == 0 else int(moved_entities[number])
        for _ in range(times):
            moved[name] = others.pop()
            name = moved[name]
        filed_under[entity] = name
    facts = {filed_under[entity]: truth[entity] for entity in entities}
    return FactBase(truth, links, amounts, KnowledgeBase(facts, moved), tuple(others), pair)


def _draw_facts(
    rng: Random, entity: str, entities: list[str], links: tuple[str, ...], amounts: tuple[str, ...]
) -> dict[str, str]:
    """Every link leads to another entity, each to a different one."""
    targets = rng.sample([other for other in entities if other != entity], len(links))
    facts = dict(zip(links, targets, strict=True))
    for relation in amounts:
        facts[relation] = str(rng.randint(2, LARGEST))
    return facts
