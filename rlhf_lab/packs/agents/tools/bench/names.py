"""Names that nobody bears, so that no model can know an answer by heart."""

from __future__ import annotations

from random import Random

from rlhf_lab.environments.splits import split_of

_ONSETS = "b br bl d dr f fr fl g gr gl h k kl kr l m n p pr qu r s sk sl sn st t th tr v w y z zw"
_VOWELS = "a e i o u ae ei ou ea oa"
_MIDDLES = "bb dd ff gg ld lf lk lm lv mb mm mp nd ndr nn nt pp rb rd rk rl rm rt rv ss sk st tt vr x zz"
_ENDINGS = "a ack ald an ard e eck el en er eth ic il in ir is o ock ol ond or oth um und une ur yr yx"
SOUNDS = tuple(sounds.split() for sounds in (_ONSETS, _VOWELS, _MIDDLES, _ENDINGS))
MOST_TRIES = 1000


def draw_name(rng: Random, split: str) -> str:
    """One word such as "Brennol", about 300,000 of them; names of `train` and `test` are never the same."""
    for _ in range(MOST_TRIES):
        name = "".join(rng.choice(sounds) for sounds in SOUNDS).capitalize()
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
