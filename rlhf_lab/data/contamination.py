"""Evaluation items in training data: which rows hold one, nearly word for word.

An item of at least `n` words is found in a row that has at least a share of its n-grams of words (8-grams and a half:
Tülu 3, arXiv:2411.15124, section 3.2; 13-grams in GPT-3, arXiv:2005.14165). A shorter item would be found in half of
all texts by chance; it counts only where it is a whole turn of the row. Words are without case and punctuation, as in
duplicates.py, which compares texts of like length as wholes; here an item is looked for within longer text.

The index holds the items' n-grams, so a pass over the rows takes time in proportion to their words, whatever the number
of items. Left out: paraphrase and translation, which take a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.types import Pair
from rlhf_lab.data.duplicates import words
from rlhf_lab.data.reading import read_rows
from rlhf_lab.data.rows import BadRows
from rlhf_lab.data.transcript import TURN

N = 8
SHARE = 0.5
Gram = tuple[str, ...]


@dataclass(frozen=True)
class Match:
    """An evaluation item that a row holds.

    Attributes:
        item: the item as it was given.
        share: of its n-grams that the row has, 0…1; 1 for a short item.
    """

    item: str
    share: float


class EvaluationItems:
    """Finds evaluation items in texts.

    Args:
        share: of an item's n-grams from which it counts as held, in (0, 1].
        n: words of an n-gram.
    """

    def __init__(self, items: Iterable[str], *, share: float = SHARE, n: int = N):
        self.share, self.n = share, n
        self._items: list[str] = []
        self._grams_of: list[int] = []
        self._with_gram: dict[Gram, list[int]] = {}
        self._short: dict[Gram, str] = {}
        for item in dict.fromkeys(items):
            self._add(item)

    def __len__(self) -> int:
        return len(self._items) + len(self._short)

    def _add(self, item: str) -> None:
        item_words = words(item)
        if not item_words:
            return
        if len(item_words) < self.n:
            self._short.setdefault(item_words, item)
            return
        grams = _grams(item_words, self.n)
        for gram in grams:
            self._with_gram.setdefault(gram, []).append(len(self._items))
        self._items.append(item)
        self._grams_of.append(len(grams))

    def find(self, text: str) -> Match | None:
        """The item that a text holds the largest share of; None where it holds none.

        Args:
            text: a transcript, or plain text, which is one turn.
        """
        for turn in TURN.split(text)[0::2]:
            short = self._short.get(words(turn))
            if short is not None:
                return Match(short, 1.0)
        counts: dict[int, int] = {}
        for gram in _grams(words(text), self.n):
            for number in self._with_gram.get(gram, ()):
                counts[number] = counts.get(number, 0) + 1
        if not counts:
            return None
        best = max(counts, key=lambda number: counts[number] / self._grams_of[number])
        share = counts[best] / self._grams_of[best]
        return Match(self._items[best], share) if share >= self.share else None

    def find_in(self, pair: Pair) -> Match | None:
        """The item that a row holds in its prompt or in one of its replies."""
        for text in (pair.prompt, pair.chosen, pair.rejected):
            match = self.find(text)
            if match is not None:
                return match
        return None


def read_items(source: str) -> list[str]:
    """Evaluation items of a file: its column prompt, or question. Raises DataError where a row has neither."""
    bad = BadRows(source)
    items = []
    for row in read_rows(source, bad):
        text = row.values.get("prompt", row.values.get("question"))
        if not isinstance(text, str):
            raise DataError(f"{row.file}, row {row.number}: expected the column prompt or question with text")
        items.append(text)
    bad.finish()
    return items


def _grams(text_words: Sequence[str], n: int) -> set[Gram]:
    return {tuple(text_words[i : i + n]) for i in range(len(text_words) - n + 1)}
