"""Bases of facts that are sampled anew for every task, so that a model cannot memorise them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from rlhf_lab.packs.agents.tools.knowledge import ToolKnowledge
from rlhf_lab.packs.agents.tools.names import draw_names, draw_paired_bases

LINKS = ("capital", "ruler", "river", "port", "temple", "guild")
"""Relations whose values are names of entities in the same base."""
AMOUNTS = ("age", "height")
"""Relations whose values are numbers."""
LARGEST = 30
"""Maximum amount. It is small so that the sum of two amounts stays within a small vocabulary of numbers."""


@dataclass(frozen=True)
class FactBase:
    """A base of true facts, and the form in which tools store them.

    Attributes:
        truth: entity → relation → value.
        links, amounts: relations of this base, with names and with numbers as values.
        knowledge: the same facts as the tools store them; those of some entities are stored under another name.
        spare: names without an entry.
        paired_bases: two entities whose names have the same first syllable; empty if there are none.
    """

    truth: Mapping[str, Mapping[str, str]]
    links: tuple[str, ...]
    amounts: tuple[str, ...]
    knowledge: ToolKnowledge
    spare: tuple[str, ...]
    paired_bases: tuple[str, ...] = ()

    @property
    def entities(self) -> tuple[str, ...]:
        return tuple(self.truth)


@dataclass(frozen=True)
class BaseSize:
    """Size of sampled bases.

    Attributes:
        entities, relations: numbers of entities and relations in each base. One relation in four, but at least one, is
            an amount.
        redirect: probability that an entity's facts are stored under another name.
    """

    entities: int = 10
    relations: int = 5
    redirect: float = 0.25


def draw_base(rng: Random, split: str, size: BaseSize, *, moves: int = 0, paired_bases: bool = False) -> FactBase:
    """Sample a fact base, which the tools look up, with names of the train or the test split.

    Args:
        rng: random numbers.
        split: split of the names.
        size: size of the base.
        moves: number of redirects to the first entity's facts; 0 means that `size.redirect` decides.
        paired_bases: True if the names of the last two entities have the same first syllable.
    """
    amount_count = max(1, size.relations // 4)
    amounts = tuple(rng.sample(AMOUNTS, amount_count))
    links = tuple(rng.sample(LINKS, size.relations - amount_count))
    # The number and order of random draws must not change: existing corpora depend on them.
    moved_entities = [rng.random() < size.redirect for _ in range(size.entities)]
    pair = draw_paired_bases(rng, split) if paired_bases else ()
    own = size.entities - len(pair)
    # One name per entity, one per redirect, and one spare name for questions about missing entities.
    names = draw_names(rng, own + sum(moved_entities) + moves + 1, split, pair)
    entities = [*names[:own], *pair]
    others = names[own:]
    truth = {}
    for entity in entities:
        truth[entity] = _draw_base(rng, entity, entities, links, amounts)
    filed_under: dict[str, str] = {}
    moved: dict[str, str] = {}
    for index, entity in enumerate(entities):
        # Each redirect uses a spare name; the facts are stored under the last name of the chain.
        name = entity
        times = moves if moves and index == 0 else int(moved_entities[index])
        for _ in range(times):
            moved[name] = others.pop()
            name = moved[name]
        filed_under[entity] = name
    facts = {filed_under[entity]: truth[entity] for entity in entities}
    return FactBase(truth, links, amounts, ToolKnowledge(facts, moved), tuple(others), pair)


def _draw_base(
    rng: Random, entity: str, entities: list[str], links: tuple[str, ...], amounts: tuple[str, ...]
) -> dict[str, str]:
    """Sample the facts of an entity. All links lead to different other entities."""
    candidates = [other for other in entities if other != entity]
    targets = rng.sample(candidates, len(links))
    facts = dict(zip(links, targets, strict=True))
    for relation in amounts:
        facts[relation] = str(rng.randint(2, LARGEST))
    return facts
