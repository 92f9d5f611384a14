"""Names that nobody bears, so that no model can know an answer by heart."""

from __future__ import annotations

from random import Random

from rlhf_lab.environments.splits import split_of

ONSETS = ("b", "br", "d", "dr", "f", "g", "gr", "h", "k", "l", "m", "n", "p", "qu", "r", "s", "sk", "t", "th", "v", "z")
VOWELS = ("a", "e", "i", "o", "u", "ae", "ei", "ou")
MIDDLES = ("bb", "ld", "lm", "mm", "ndr", "nn", "rk", "rv", "ss", "st", "tt", "vr", "x", "zz")
ENDINGS = ("a", "ack", "en", "eth", "ic", "in", "is", "o", "ol", "ond", "or", "um", "une", "yr")
MOST_TRIES = 1000


def draw_name(rng: Random, split: str) -> str:
    """One word such as "Brennol", about 33,000 of them; names of `train` and `test` are never the same."""
    for _ in range(MOST_TRIES):
        parts = [rng.choice(sounds) for sounds in (ONSETS, VOWELS, MIDDLES, ENDINGS)]
        name = "".join(parts).capitalize()
        if split_of(name) == split:
            return name
    raise ValueError(f"no name of the split {split!r} in {MOST_TRIES} tries; splits are train and test")


def draw_person(rng: Random, split: str) -> str:
    return f"{draw_name(rng, split)} {draw_name(rng, split)}"


def misspell(name: str, rng: Random) -> str:
    """A name with two neighbouring letters swapped, or one left out; never the first."""
    places = [at for at in range(1, len(name) - 1) if name[at : at + 2].isalpha()]
    for _ in range(MOST_TRIES):
        at = rng.choice(places)
        swapped = name[:at] + name[at + 1] + name[at] + name[at + 2 :]
        shortened = name[:at] + name[at + 1 :]
        wrong = rng.choice((swapped, shortened))
        if wrong != name:
            return wrong
    raise ValueError(f"{name!r} has no two letters that could be swapped")
