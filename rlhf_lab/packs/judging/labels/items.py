"""Items to label: two responses to a prompt, shown in an order that does not reveal their authors."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from hashlib import sha256

FIRST, SECOND, TIE = "first", "second", "tie"
WINNERS = (FIRST, SECOND, TIE)
CHOSEN_FIRST = ("chosen", "rejected")
"""Names of the two responses of a pair whose chosen response is `first`."""


@dataclass(frozen=True, slots=True)
class LabelItem:
    """Two responses to one prompt.

    Attributes:
        id: unique id in the source, the same whenever the source is read.
        prompt_id: id of the prompt; labels of one prompt are not independent.
        prompt: transcript that ends where the responses start.
        names: authors of `first` and `second`.
        winner: the judge's verdict: first, second or tie; None without a verdict. Hidden until the item is labelled.
        score: the judge's probability that `first` is better, in [0, 1]; None if it gives none.
    """

    id: str
    prompt_id: str
    prompt: str
    first: str
    second: str
    names: tuple[str, str] = (FIRST, SECOND)
    winner: str | None = None
    score: float | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> LabelItem:
        row = json.loads(text)
        return cls(**{**row, "names": tuple(row["names"])})  # JSON has no tuples


def digest(*parts: object) -> str:
    """Return a short digest of the parts, the same on every machine."""
    return sha256(repr(parts).encode()).hexdigest()[:16]


def draw(items: Iterable[LabelItem], seed: int, count: int | None = None) -> list[LabelItem]:
    """Return the first `count` items in a random order set by `seed`; all of them if None.

    The order depends on the seed and the ids only: with a larger count the earlier items stay first.
    """
    # a digest of seed and id is a random order that does not depend on the other items
    ordered = sorted(items, key=lambda item: digest("order", seed, item.id))
    return ordered[:count]


def shown_first(item_id: str, seed: int, annotator: str) -> str:
    """Return the response that an annotator sees as number 1: `first` or `second`, each for half of the items."""
    # the parity of a digest is a reproducible coin flip
    return (FIRST, SECOND)[int(digest("side", seed, annotator, item_id), 16) % 2]


def other_side(side: str) -> str:
    return SECOND if side == FIRST else FIRST
