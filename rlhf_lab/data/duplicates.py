"""Near-duplicate texts, by the longest common subsequence of their words (ROUGE-L).

Self-instruct (arXiv:2212.10560, section 2.2) keeps a new instruction if its ROUGE-L with every earlier one is below
0.7. Not detected: paraphrases in other words, which need a model.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from unicodedata import normalize

import numpy as np

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
        texts: texts to add at the start.
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
        occurrences = _occurrences(text_words)
        found = [self._with_word[each] for each in occurrences if each in self._with_word]
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
