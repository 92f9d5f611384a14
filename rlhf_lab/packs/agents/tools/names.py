"""Invented names of two syllables, so that a closed vocabulary can represent names that never occur in training.

The hash of a name's text decides whether it belongs to the training or the test split, as for prompts. Tasks of the
test split therefore use names that no training task uses, although every syllable is known.
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
"""Minimum number of syllables that the names of a base leave unused."""


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
