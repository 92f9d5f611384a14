"""Near-duplicates of texts of similar length, and evaluation items within longer texts (contamination).

`NearDuplicates` compares by the longest common subsequence of words (ROUGE-L).

Self-instruct (arXiv:2212.10560, section 2.2) keeps a new instruction if its ROUGE-L with every earlier one is below
0.7. Not detected: paraphrases in other words, which need a model.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from unicodedata import normalize

import numpy as np

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.types import Pair
from rlhf_lab.data.reading import read_rows
from rlhf_lab.data.rows import BadRows
from rlhf_lab.data.transcript import TURN

NOT_WORD = re.compile(r"\W+")  # case and punctuation do not make a text different
WITHOUT_SPACES = re.compile(
    r"([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff])"
)
"""Characters of scripts without spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text without case, punctuation and the speaker names of a transcript.

    In scripts without spaces between words, every character is a word.
    """
    text = TURN.sub(" ", text).casefold()
    if not text.isascii():
        # an accent may be part of its letter or a character of its own
        text = WITHOUT_SPACES.sub(r" \1 ", normalize("NFC", text))
    return tuple(NOT_WORD.sub(" ", text).split())


def positions(texts_words: Sequence[str]) -> dict[str, int]:
    """Return word → integer whose bit i is 1 if the word is at index i of the list."""
    found: dict[str, int] = {}
    for i, word in enumerate(texts_words):
        found[word] = found.get(word, 0) | 1 << i
    return found


def common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the length of the longest common subsequence of two word lists."""
    return _common_subsequence(positions(first), len(first), second)


def _common_subsequence(positions_of_first: Mapping[str, int], size: int, second: Sequence[str]) -> int:
    """Return the length of the longest common subsequence of a list of `size` words and `second`.

    Bit-parallel dynamic programming (Hyyrö 2004): one addition of integers of `size` bits per word of `second`. Bit i
    of `flat` is 1 if, for the words of `second` so far, first[: i + 1] has no longer subsequence than first[:i].
    """
    every_bit = (1 << size) - 1
    flat = every_bit
    for word in second:
        matches = flat & positions_of_first.get(word, 0)
        if matches:
            # the sum carries each match to the end of its block of flat bits; the mask drops the carry out of the row
            flat = (flat + matches | flat - matches) & every_bit
    return size - flat.bit_count()


def overlap(first: Sequence[str], second: Sequence[str]) -> float:
    """Return the ROUGE-L F-measure of two word lists, 2·LCS/(|a| + |b|), in 0…1; 1 for two empty lists."""
    if not first and not second:
        return 1.0
    return 2 * common_subsequence(first, second) / (len(first) + len(second))


class NearDuplicates:
    """Index of texts that finds near-duplicates of a new text. Texts with equal words are always duplicates.

    Args:
        limit: largest overlap that does not count as duplicate, 0…1; with 1, only equal words count.
    """

    def __init__(self, limit: float, texts: Iterable[str] = ()):
        self.limit = limit
        self._texts: list[str] = []
        self._words: list[tuple[str, ...]] = []
        self._number: dict[tuple[str, ...], int] = {}
        # number of words of each text
        self._sizes = array("l")
        # Inverted index: (word, k) → indices of the texts that contain the word at least k + 1 times.
        self._with_word: dict[tuple[str, int], array[int]] = {}
        for text in texts:
            self.add(text)

    def add(self, text: str) -> None:
        number = len(self._texts)
        text_words = words(text)
        self._texts.append(text)
        self._words.append(text_words)
        self._sizes.append(len(text_words))
        self._number.setdefault(text_words, number)
        # with the limit 1 only equal words count, which needs no index of words
        if self.limit < 1:
            for occurrence in _occurrences(text_words):
                self._with_word.setdefault(occurrence, array("l")).append(number)

    def find(self, text: str) -> str | None:
        """Return an earlier text that this one duplicates, or None."""
        text_words = words(text)
        if text_words in self._number:
            return self._texts[self._number[text_words]]
        if self.limit >= 1:
            return None
        candidates = self._candidates(text_words)
        if not candidates:  # most texts; the positions are then not needed
            return None
        positions_of_text = positions(text_words)
        size = len(text_words)
        for number in candidates:
            other = self._words[number]
            common = _common_subsequence(positions_of_text, size, other)
            if 2 * common / (size + len(other)) > self.limit:
                return self._texts[number]
        return None

    def _candidates(self, text_words: Sequence[str]) -> list[int]:
        """Return the indices of texts whose overlap can exceed the limit, in ascending order.

        A common subsequence is not longer than the number of common words, repeated words included. Counting these is
        much faster than finding the subsequence, and leaves few texts.
        """
        found = [self._with_word[each] for each in _occurrences(text_words) if each in self._with_word]
        if not found:
            return []
        common_N = np.bincount(np.concatenate(found), minlength=len(self._texts))
        total_N = np.asarray(self._sizes) + len(text_words)
        return np.flatnonzero(2 * common_N / total_N > self.limit).tolist()


def _occurrences(text_words: Sequence[str]) -> list[tuple[str, int]]:
    """Return each word with the number of times that it occurs before: "a b a" → (a, 0), (b, 0), (a, 1)."""
    counts: dict[str, int] = {}
    occurrences = []
    for word in text_words:
        occurrences.append((word, counts.get(word, 0)))
        counts[word] = counts.get(word, 0) + 1
    return occurrences


N = 8
"""Words of an n-gram (Tülu 3, section 3.2)."""
SHARE = 0.5
"""Fraction of an item's n-grams that a row must contain (Tülu 3, section 3.2)."""
Gram = tuple[str, ...]


@dataclass(frozen=True)
class Match:
    """An evaluation item found in a row.

    Attributes:
        share: fraction of the item's n-grams in the row, 0…1; 1 for a short item.
    """

    item: str
    share: float


class EvaluationItems:
    """Index of evaluation items, which finds them in texts, nearly word for word.

    An item of `n` or more words counts as found in a row that contains a sufficient fraction of its word n-grams
    (8-grams and 0.5: Tülu 3, arXiv:2411.15124, section 3.2; 13-grams in GPT-3, arXiv:2005.14165). Shorter items occur
    by chance in many texts, so they count only if they are an entire turn of the row.

    The index maps n-grams to items, so the time of a pass over the rows is proportional to their words.

    Args:
        share: minimum fraction of an item's n-grams that a text must contain, in (0, 1].
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
        counts = Counter(number for gram in _grams(words(text), self.n) for number in self._with_gram.get(gram, ()))
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
