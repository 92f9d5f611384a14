"""Bases of facts that are sampled anew for every task, so that a model cannot memorise them.

Names are invented and have two syllables, so that a closed vocabulary can represent names that never occur in training.
The hash of a name's text decides whether it belongs to the training or the test split, as for prompts. Tasks of the
test split therefore use names that no training task uses, although every syllable is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

from rlhf_lab.environments.splits import split_of
from rlhf_lab.packs.agents.tools.knowledge import ToolKnowledge
from rlhf_lab.packs.agents.tools.settings import Tools

LINKS = ("capital", "ruler", "river", "port", "temple", "guild")
"""Relations whose values are names of entities in the same base."""
AMOUNTS = ("age", "height")
"""Relations whose values are numbers."""
LARGEST = 30
"""Maximum amount. It is small so that the sum of two amounts stays within a small vocabulary of numbers."""
SYLLABLES = (
    "bal", "bem", "bor", "dak", "del", "dun", "fal", "fen", "fir", "gam", "gol", "gus", "hal", "hem", "hov", "jal",
    "jen", "jor", "kal", "kem", "kir", "kov", "lam", "len", "lor", "mal", "mep", "mir", "mos", "nal", "nev", "nor",
    "pal", "pem", "pir", "pov", "ral", "rek", "ril", "rum", "sal", "sef", "sil", "sor", "tal", "tev", "tir", "tov",
    "val", "vek", "vil", "vor", "wal", "wen", "zal", "zem", "zir", "zov",
)  # fmt: skip

SPARE = 10
"""Minimum number of syllables that the names of a base leave unused."""


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


def draw_base(rng: Random, split: str, size: Tools, *, moves: int = 0, paired_bases: bool = False) -> FactBase:
    """Sample a fact base, which the tools look up, with names of the train or the test split. One relation in four, but
    at least one, is an amount.

    Args:
        rng: random numbers.
        split: split of the names.
        size: settings of the world.
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
    truth = {entity: _draw_facts(rng, entity, entities, links, amounts) for entity in entities}
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


def _draw_facts(
    rng: Random, entity: str, entities: list[str], links: tuple[str, ...], amounts: tuple[str, ...]
) -> dict[str, str]:
    """Sample the facts of an entity. All links lead to different other entities."""
    candidates = [other for other in entities if other != entity]
    targets = rng.sample(candidates, len(links))
    facts = dict(zip(links, targets, strict=True))
    for relation in amounts:
        facts[relation] = str(rng.randint(2, LARGEST))
    return facts


@cache
def names_of(split: str) -> tuple[tuple[str, str], ...]:
    """Return all names of a split, as pairs of different syllables."""
    pairs = ((first, second) for first in SYLLABLES for second in SYLLABLES if first != second)
    return tuple(pair for pair in pairs if split_of(" ".join(pair)) == split)


def draw_names(rng: Random, count: int, split: str, exclude: Sequence[str] = ()) -> list[str]:
    """Sample names of a split in which no syllable occurs twice, so that a syllable identifies its name.

    Args:
        rng: random numbers.
        count: number of names.
        split: split of the names.
        exclude: names whose syllables must not be used.

    Raises ValueError if there are not enough syllables.
    """
    used = {syllable for name in exclude for syllable in name.split()}
    # With fewer spare syllables, the test split may have no name left, and the loop below would never end.
    if 2 * count + len(used) > len(SYLLABLES) - SPARE:
        limit = (len(SYLLABLES) - SPARE) // 2
        raise ValueError(f"{count} names without a common syllable are too many; the limit is {limit}")
    all_names = names_of(split)
    names: list[str] = []
    while len(names) < count:
        name = rng.choice(all_names)
        if used.isdisjoint(name):
            used.update(name)
            names.append(" ".join(name))
    return names


def draw_paired_bases(rng: Random, split: str) -> tuple[str, str]:
    """Sample two names with the same first syllable."""
    names = names_of(split)
    while True:
        first, second = rng.choice(names), rng.choice(names)
        if first[0] == second[0] and first != second:
            return " ".join(first), " ".join(second)
