"""Names that nobody knows: two syllables each, so that a closed vocabulary can write names never seen in training.

A name belongs to the training or to the test split by the hash of its text, as prompts do: a task of the test split
asks about names that no training task has, although every syllable is known.
"""

from __future__ import annotations

from functools import cache
from random import Random

from rlhf_lab.environments.splits import split_of

SYLLABLES = (
    "bal", "bem", "bor", "dak", "del", "dun", "fal", "fen", "fir", "gam", "gol", "gus", "hal", "hem", "hov", "jal",
    "jen", "jor", "kal", "kem", "kir", "kov", "lam", "len", "lor", "mal", "mep", "mir", "mos", "nal", "nev", "nor",
    "pal", "pem", "pir", "pov", "ral", "rek", "ril", "rum", "sal", "sef", "sil", "sor", "tal", "tev", "tir", "tov",
    "val", "vek", "vil", "vor", "wal", "wen", "zal", "zem", "zir", "zov",
)  # fmt: skip


@cache
def names_of(split: str) -> tuple[tuple[str, str], ...]:
    """All names of a split, as pairs of different syllables."""
    pairs = ((first, second) for first in SYLLABLES for second in SYLLABLES if first != second)
    return tuple(pair for pair in pairs if split_of(" ".join(pair)) == split)


def draw_names(rng: Random, count: int, split: str) -> list[str]:
    """Names of a split in which no syllable occurs twice, so that a syllable says which name it is part of.

    Raises ValueError for more names than there are syllables for.
    """
    if 3 * count > len(SYLLABLES):  # with fewer syllables to spare the last names are hard to find in the test split
        raise ValueError(f"{count} names without a common syllable; at most {len(SYLLABLES) // 3} can be drawn")
    all_names = names_of(split)
    names: list[str] = []
    used: set[str] = set()
    while len(names) < count:
        name = rng.choice(all_names)
        if used.isdisjoint(name):
            used.update(name)
            names.append(" ".join(name))
    return names


def draw_twins(rng: Random, split: str, taken: list[str]) -> tuple[str, str]:
    """Two names with the same first syllable, and no syllable of a name that is taken."""
    used = {syllable for name in taken for syllable in name.split()}
    names = [name for name in names_of(split) if used.isdisjoint(name)]
    while True:
        first = rng.choice(names)
        others = [name for name in names if name[0] == first[0] and name != first]
        if others:
            return " ".join(first), " ".join(rng.choice(others))
