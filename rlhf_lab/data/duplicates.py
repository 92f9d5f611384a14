"""Texts that say nearly the same as another: by the longest common subsequence of their words (ROUGE-L).

Self-instruct (arXiv:2212.10560, section 2.2) keeps a new instruction whose ROUGE-L with every earlier one is below .7.
Left out: paraphrase in other words, which takes a model.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from rlhf_lab.data.transcript import TURN

NOT_WORD = re.compile(r"\W+")


def words(text: str) -> tuple[str, ...]:
    """Words of a text without case, punctuation and the speakers of a transcript."""
    return tuple(NOT_WORD.sub(" ", TURN.sub(" ", text).casefold()).split())


def common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the longest common subsequence of words."""
    lengths = [0] * (len(second) + 1)
    for word in first:
        diagonal = 0  # length for the words before this one and before `other`
        for i, other in enumerate(second, 1):
            above = lengths[i]
            lengths[i] = diagonal + 1 if word == other else max(above, lengths[i - 1])
            diagonal = above
    return lengths[-1]


def overlap(first: Sequence[str], second: Sequence[str]) -> float:
    """ROUGE-L of two lists of words, F-measure: 2·LCS/(|a| + |b|), 0…1; 1 for two empty ones."""
    if not first and not second:
        return 1.0
    return 2 * common_subsequence(first, second) / (len(first) + len(second))


class NearDuplicates:
    """Finds an earlier text that overlaps with a new one by more than a limit; equal words always do.

    Args:
        limit: largest overlap that is no duplicate, 0…1; 1 calls only texts of the same words duplicates.
    """

    def __init__(self, limit: float, texts: Iterable[str] = ()):
        self.limit = limit
        self._texts: list[str] = []
        self._words: list[tuple[str, ...]] = []
        self._number: dict[tuple[str, ...], int] = {}
        self._with_word: dict[str, list[int]] = {}
        for text in texts:
            self.add(text)

    def add(self, text: str) -> None:
        number = len(self._texts)
        text_words = words(text)
        self._texts.append(text)
        self._words.append(text_words)
        self._number.setdefault(text_words, number)
        if self.limit < 1:
            for word in set(text_words):
                self._with_word.setdefault(word, []).append(number)

    def find(self, text: str) -> str | None:
        """An earlier text that this one duplicates; None where there is none."""
        text_words = words(text)
        if text_words in self._number:
            return self._texts[self._number[text_words]]
        if self.limit >= 1:
            return None
        counts = Counter(text_words)
        for number in self._candidates(text_words):
            other = self._words[number]
            # at most so many words of a common subsequence as the texts have in common in any order
            bound = 2 * (counts & Counter(other)).total() / (len(text_words) + len(other))
            if bound > self.limit and overlap(text_words, other) > self.limit:
                return self._texts[number]
        return None

    def _candidates(self, text_words: Sequence[str]) -> list[int]:
        """Numbers of the texts that can overlap by more than the limit.

        From 2·c/(|a| + |b|) > t and c ≤ |b| follows c > t·|a|/(2 − t) for the words c in common. So one of the rarest
        |a| − ⌊t·|a|/(2 − t)⌋ words of a has to be among them, and the lists of the frequent words need not be read.
        """
        least_common = math.floor(self.limit * len(text_words) / (2 - self.limit))
        rarest = sorted(text_words, key=lambda word: len(self._with_word.get(word, ())))
        looked_up = rarest[: len(text_words) - least_common]
        return sorted({number for word in looked_up for number in self._with_word.get(word, ())})
