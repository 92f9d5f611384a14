"""Near-duplicate texts, by the longest common subsequence of their words (ROUGE-L).

Self-instruct (arXiv:2212.10560, section 2.2) keeps a new instruction if its ROUGE-L with every earlier one is below
0.7. Not detected: paraphrases in other words, which need a model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from rlhf_lab.data.transcript import TURN

NOT_WORD = re.compile(r"\W+")


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text without case, punctuation and the speaker names of a transcript."""
    return tuple(NOT_WORD.sub(" ", TURN.sub(" ", text).casefold()).split())


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
        # inverted index: word → indices of the texts that contain it
        self._with_word: dict[str, list[int]] = {}
        for text in texts:
            self.add(text)

    def add(self, text: str) -> None:
        number = len(self._texts)
        text_words = words(text)
        self._texts.append(text)
        self._words.append(text_words)
        self._number.setdefault(text_words, number)
        # with the limit 1 only equal words count, which needs no index of words
        if self.limit < 1:
            for word in set(text_words):
                self._with_word.setdefault(word, []).append(number)

    def find(self, text: str) -> str | None:
        """Return an earlier text that this one duplicates, or None."""
        text_words = words(text)
        if text_words in self._number:
            return self._texts[self._number[text_words]]
        if self.limit >= 1:
            return None
        size = len(text_words)
        positions_of_text = positions(text_words)
        for number in self._candidates(text_words):
            other = self._words[number]
            total = size + len(other)
            # texts of very different lengths cannot overlap enough
            if 2 * min(size, len(other)) <= self.limit * total:
                continue
            if 2 * _common_subsequence(positions_of_text, size, other) / total > self.limit:
                return self._texts[number]
        return None

    def _candidates(self, text_words: Sequence[str]) -> list[int]:
        """Return the indices of texts whose overlap can exceed the limit t.

        2·c/(|a| + |b|) > t and c ≤ |b| imply c > t·|a|/(2 − t), where c is the number of common words. One or more of
        the rarest |a| − ⌊t·|a|/(2 − t)⌋ words of a are therefore common words, so the long lists of frequent words need
        not be read.
        """
        bound = self.limit * len(text_words) / (2 - self.limit)
        min_common = math.floor(bound)
        rarest = sorted(text_words, key=lambda word: len(self._with_word.get(word, ())))
        looked_up = rarest[: len(text_words) - min_common]
        numbers: set[int] = set()
        for word in looked_up:
            numbers.update(self._with_word.get(word, ()))
        return sorted(numbers)
