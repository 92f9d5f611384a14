"""Contamination: finds evaluation items that training rows contain, nearly word for word.

An item of `n` or more words counts as found in a row that contains a sufficient fraction of its word n-grams (8-grams
and 0.5: Tülu 3, arXiv:2411.15124, section 3.2; 13-grams in GPT-3, arXiv:2005.14165). Shorter items occur by chance in
many texts, so they count only if they are an entire turn of the row. Words are those of duplicates.py, without case and
punctuation. That module compares two texts of similar length; this one searches an item within a longer text.

The index maps n-grams to items, so the time of a pass over the rows is proportional to their words, independent of the
number of items. Not detected: paraphrases and translations, which need a model.
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
"""Words of an n-gram (Tülu 3, section 3.2)."""
SHARE = 0.5
"""Fraction of an item's n-grams that a row must contain (Tülu 3, section 3.2)."""
Gram = tuple[str, ...]


@dataclass(frozen=True)
class Match:
    """An evaluation item found in a row.

    Attributes:
        item: text of the item.
        share: fraction of the item's n-grams in the row, 0…1; 1 for a short item.
    """

    item: str
    share: float


class EvaluationItems:
    """Index of evaluation items, which finds them in texts.

    Args:
        items: texts of the evaluation items.
        share: minimum fraction of an item's n-grams that a text must contain, in (0, 1].
        n: number of words of an n-gram.
    """

    def __init__(self, items: Iterable[str], *, share: float = SHARE, n: int = N):
        self.share, self.n = share, n
        self._items: list[str] = []
        self._grams_of: list[int] = []
        # inverted index: n-gram → indices of the items that contain it
        self._with_gram: dict[Gram, list[int]] = {}
        # items with fewer than n words, by their words
        self._short: dict[Gram, str] = {}
        # a repeated item is added once
        for item in dict.fromkeys(items):
            self._add(item)

    def __len__(self) -> int:
        return len(self._items) + len(self._short)

    def _add(self, item: str) -> None:
        item_words = words(item)
        if not item_words:
            return
        if len(item_words) < self.n:  # it has no n-gram, so it is compared as a whole
            self._short.setdefault(item_words, item)
            return
        grams = _grams(item_words, self.n)
        for gram in grams:
            self._with_gram.setdefault(gram, []).append(len(self._items))
        self._items.append(item)
        self._grams_of.append(len(grams))

    def find(self, text: str) -> Match | None:
        """Return the item with the largest fraction of n-grams in a text, or None if no item reaches the limit.

        Args:
            text: a transcript, or plain text, which counts as one turn.
        """
        # short items have no n-gram: they must equal a turn
        for turn in TURN.split(text)[0::2]:
            short = self._short.get(words(turn))
            if short is not None:
                return Match(short, 1.0)
        # number of n-grams of each item that the text contains
        counts: dict[int, int] = {}
        for gram in _grams(words(text), self.n):
            for number in self._with_gram.get(gram, ()):
                counts[number] = counts.get(number, 0) + 1
        if not counts:
            return None
        best = max(counts, key=lambda number: counts[number] / self._grams_of[number])
        fraction = counts[best] / self._grams_of[best]
        return Match(self._items[best], fraction) if fraction >= self.share else None

    def find_in(self, pair: Pair) -> Match | None:
        """Return an item found in the prompt or in one of the responses of a row, or None."""
        for text in (pair.prompt, pair.chosen, pair.rejected):
            match = self.find(text)
            if match is not None:
                return match
        return None


def read_items(source: str) -> list[str]:
    """Return the evaluation items of a file: its column prompt, or question. Raise DataError if a row has neither."""
    bad = BadRows(source)
    items = []
    for row in read_rows(source, bad):
        text = row.values.get("prompt", row.values.get("question"))
        if not isinstance(text, str):
            raise DataError(
                f"{row.file}, row {row.number}: there is no text in the column prompt or question; add one of them"
            )
        items.append(text)
    bad.finish()
    return items


def _grams(text_words: Sequence[str], n: int) -> set[Gram]:
    # empty for a text with fewer than n words
    starts = range(len(text_words) - n + 1)
    return {tuple(text_words[start : start + n]) for start in starts}
