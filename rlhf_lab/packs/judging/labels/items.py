"""What is labelled: two replies to a prompt, in an order that names neither of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

FIRST, SECOND, TIE = "first", "second", "tie"
WINNERS = (FIRST, SECOND, TIE)


@dataclass(frozen=True, slots=True)
class Item:
    """Two replies to one prompt.

    Attributes:
        id: unique in its source, the same whenever the source is read.
        prompt_id: labels of one prompt are not independent of each other.
        prompt: transcript that ends where the replies start.
        names: who wrote `first` and `second`.
        winner: what the judge says: first, second or tie; None where it says nothing. Not shown before the label.
        score: how sure the judge is that `first` is better, in [0, 1]; None where it does not say.
    """

    id: str
    prompt_id: str
    prompt: str
    first: str
    second: str
    names: tuple[str, str] = (FIRST, SECOND)
    winner: str | None = None
    score: float | None = None

    def to_row(self) -> dict[str, Any]:
        """JSON-ready; inverse of `from_row`."""
        return asdict(self)

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Item:
        return cls(**{**row, "names": tuple(row["names"])})


def digest(*parts: object) -> str:
    """A short text that stands for the parts, the same on every machine."""
    return sha256(repr(parts).encode()).hexdigest()[:16]


def draw(items: Iterable[Item], seed: int, count: int | None = None) -> list[Item]:
    """The first `count` items in an order drawn by `seed`; all of them for None.

    An item's place depends on nothing but the seed and its id: with a larger count the earlier items stay first.
    """
    ordered = sorted(items, key=lambda item: digest("order", seed, item.id))
    return ordered[:count]


def shown_first(item_id: str, seed: int, annotator: str) -> str:
    """Which reply an annotator sees as number 1: `first` or `second`, each for half of the items."""
    return (FIRST, SECOND)[int(digest("side", seed, annotator, item_id), 16) % 2]


def other(side: str) -> str:
    """The side that `side` is not."""
    return SECOND if side == FIRST else FIRST
