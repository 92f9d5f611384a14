"""Invented names, so that no model can know an answer from its training data."""

from __future__ import annotations

from random import Random

from rlhf_lab.environments.splits import split_of

_ONSETS = "b br bl d dr f fr fl g gr gl h k kl kr l m n p pr qu r s sk sl sn st t th tr v w y z zw"
_VOWELS = "a e i o u ae ei ou ea oa"
_MIDDLES = "bb dd ff gg ld lf lk lm lv mb mm mp nd ndr nn nt pp rb rd rk rl rm rt rv ss sk st tt vr x zz"
_ENDINGS = "a ack ald an ard e eck el en er eth ic il in ir is o ock ol ond or oth um und une ur yr yx"
SOUNDS = tuple(sounds.split() for sounds in (_ONSETS, _VOWELS, _MIDDLES, _ENDINGS))
MOST_TRIES = 1000  # only an unknown split needs as many


def draw_name(rng: Random, split: str) -> str:
    """Sample one word such as "Brennol" out of about 300,000; the names of `train` and `test` are disjoint."""
    for _ in range(MOST_TRIES):
        letters = [rng.choice(sounds) for sounds in SOUNDS]
        name = "".join(letters).capitalize()
        if split_of(name) == split:
            return name
    raise ValueError(f"no name of the split {split!r} in {MOST_TRIES} tries; use the split train or test")


def draw_person(rng: Random, split: str) -> str:
    return f"{draw_name(rng, split)} {draw_name(rng, split)}"


def misspell(name: str, rng: Random) -> str:
    """Swap two neighbouring letters of a name, or leave one out; the first letter stays."""
    # A position is followed by another letter of the same word, so that a swap does not move a space.
    inner = range(1, len(name) - 1)
    positions = [at for at in inner if name[at : at + 2].isalpha()]
    for _ in range(MOST_TRIES):
        at = rng.choice(positions)
        before, after = name[:at], name[at + 2 :]
        first, second = name[at], name[at + 1]
        swapped = before + second + first + after
        shortened = before + second + after
        wrong = rng.choice((swapped, shortened))
        # Swapping two equal letters changes nothing, so it is tried again.
        if wrong != name:
            return wrong
    raise ValueError(f"{name!r} has no two different neighbouring letters to swap; use a longer name")
