"""Passages that can be found by their words.

BM25 (Robertson & Zaragoza 2009, eq. 3.15) with the idf of Lucene, which is never negative:
    score(q, d) = Σ_{w in q} idf(w) · tf / (tf + k1·(1 − b + b·|d|/mean |d|)),   idf(w) = log(1 + (N − n + ½)/(n + ½))
Left out: stemming, synonyms, stop words (a word of every passage weighs little by its idf).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from rlhf_lab.core.tools import Tool, ToolError, text_tool

WORD = re.compile(r"\w+")
SATURATION = 1.2
"""k1: how soon further occurrences of a word stop to count."""
LENGTH_WEIGHT = 0.75
"""b: how much a long passage is discounted, from 0 to 1."""
TOP = 3
"""Passages that a search returns."""


@dataclass(frozen=True)
class PassageIndex:
    """Attributes:
    passages: title → text. Of passages that match equally well the earlier one comes first.
    """

    passages: Mapping[str, str]

    @cached_property
    def _word_counts(self) -> dict[str, Counter[str]]:
        """Title → how often each word occurs in title and text."""
        return {title: Counter(words(f"{title} {text}")) for title, text in self.passages.items()}

    @cached_property
    def _idf(self) -> dict[str, float]:
        documents = Counter(word for counts in self._word_counts.values() for word in counts)
        total = len(self.passages)
        return {word: math.log1p((total - n + 0.5) / (n + 0.5)) for word, n in documents.items()}

    def find(self, query: str, top: int = TOP) -> list[tuple[str, float]]:
        """(title, score) of the passages that share a word with the query, best first."""
        lengths = {title: counts.total() for title, counts in self._word_counts.items()}
        mean_length = sum(lengths.values()) / max(1, len(lengths))
        scores = {}
        for title, counts in self._word_counts.items():
            discount = SATURATION * (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * lengths[title] / mean_length)
            shared = [word for word in set(words(query)) if word in counts]
            # sorted: a float sum depends on its order, and that of a set on the process
            scores[title] = sum(self._idf[word] * counts[word] / (counts[word] + discount) for word in sorted(shared))
        ranked = sorted(scores.items(), key=lambda item: -item[1])
        return [(title, score) for title, score in ranked[:top] if score > 0]

    def retrieve(self, query: str) -> str:
        """The best passages, one a line: "title: text". Raises ToolError where none shares a word with the query."""
        if not words(query):
            raise ToolError("the query has no words; write what to look for, such as: height of the tower")
        found = self.find(query)
        if not found:
            raise ToolError(f"no passage has any word of {query!r}")
        return "\n".join(f"{title}: {self.passages[title]}" for title, _ in found)


def words(text: str) -> list[str]:
    return WORD.findall(text.casefold())


def retrieval_tool(index: PassageIndex) -> Tool:
    return text_tool(
        "retrieve",
        f"Finds the {TOP} passages that fit a few key words best.",
        {"query": "key words, such as: height of the tower"},
        index.retrieve,
    )
