"""Names that nobody knows: two syllables each, so that a closed vocabulary can write names never seen in training.

A name belongs to the training or to the test split by the hash of its text, as prompts do: a task of the test split
asks about names that no training task has, although every syllable is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random

from rlhf_lab.environments.splits import split_of

SYLLABLES = (
    "bal", "bem", "bor", "dak", "del", "dun", "fal", "fen", "fir", "gam", "gol", "gus", "hal", "hem", "hov", "jal",
    "jen", "jor", "kal", "kem", "kir", "kov", "lam", "len", "lor", "mal", "mep", "mir", "mos", "nal", "nev", "nor",
    "pal", "pem", "pir", "pov", "ral", "rek", "ril", "rum", "sal", "sef", "sil", "sor", "tal", "tev", "tir", "tov",
    "val", "vek", "vil", "vor", "wal", "wen", "zal", "zem", "zir", "zov",
)  # fmt: skip

SPARE = 10
"""Syllables that the names of a base leave over."""


@cache
def names_of(split: str) -> tuple[tuple[str, str], ...]:
    """All names of a split, as pairs of different syllables."""
    pairs = ((first, second) for first in SYLLABLES for second in SYLLABLES if first != second)
    return tuple(pair for pair in pairs if split_of(" ".join(pair)) == split)


def draw_names(rng: Random, count: int, split: str, apart_from: Sequence[str] = ()) -> list[str]:
    """Names of a split in which no syllable occurs twice, so that a syllable says which name it is part of.

    Args:
        apart_from: names whose syllables are not used either.

    Raises ValueError for more names than there are syllables for.
    """
    used = {syllable for name in apart_from for syllable in name.split()}
    # with fewer syllables to spare there may be no name left in the test split
    if 2 * count + len(used) > len(SYLLABLES) - SPARE:
        raise ValueError(f"{count} names without a common syllable; at most {(len(SYLLABLES) - SPARE) // 2}")
    all_names = names_of(split)
    names: list[str] = []
    while len(names) < count:
        name = rng.choice(all_names)
        if used.isdisjoint(name):
            used.update(name)
            names.append(" ".join(name))
    return names


def draw_twins(rng: Random, split: str) -> tuple[str, str]:
    """Two names with the same first syllable."""
    names = names_of(split)
    while True:
        first, second = rng.choice(names), rng.choice(names)
        if first[0] == second[0] and first != second:
            return " ".join(first), " ".join(second)
