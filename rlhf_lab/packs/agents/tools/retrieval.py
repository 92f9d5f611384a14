"""Retrieval of passages by their words with BM25 (Robertson & Zaragoza 2009, eq. 3.15).

The idf is that of Lucene, which is never negative:
    score(q, d) = Σ_{w in q} idf(w) · tf / (tf + k1·(1 − b + b·|d|/mean |d|)),   idf(w) = log(1 + (N − n + ½)/(n + ½))
Not included: stemming, synonyms, stop words (the idf already gives frequent words a low weight).
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
"""Parameter k1 of BM25: saturation of repeated occurrences of a word."""
LENGTH_WEIGHT = 0.75
"""Parameter b of BM25: penalty for long passages, from 0 to 1."""
TOP = 3
"""Number of passages that a search returns."""


@dataclass(frozen=True)
class PassageIndex:
    """Index of passages for BM25.

    Attributes:
        passages: title → text. Passages with equal scores keep this order.
    """

    passages: Mapping[str, str]

    @cached_property
    def _word_counts(self) -> dict[str, Counter[str]]:
        """Number of occurrences of each word in title and text, by title."""
        counts = {}
        for title, text in self.passages.items():
            counts[title] = Counter(words(f"{title} {text}"))
        return counts

    @cached_property
    def _idf(self) -> dict[str, float]:
        passages_with: Counter[str] = Counter()
        for counts in self._word_counts.values():
            passages_with.update(counts.keys())
        total = len(self.passages)
        # log(1 + …), as in Lucene's BM25: it is positive even for a word of more than half of the passages.
        return {word: math.log1p((total - n + 0.5) / (n + 0.5)) for word, n in passages_with.items()}

    def find(self, query: str, top: int = TOP) -> list[tuple[str, float]]:
        """Return (title, score) of the passages that have a word in common with the query, best first."""
        lengths = {title: counts.total() for title, counts in self._word_counts.items()}
        mean_length = sum(lengths.values()) / max(1, len(lengths))
        query_words = set(words(query))
        scores = {}
        for title, counts in self._word_counts.items():
            discount = SATURATION * (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * lengths[title] / mean_length)
            # Sorted, because a float sum depends on its order, and the order of a set differs between processes.
            shared = sorted(query_words & counts.keys())
            terms = [self._idf[word] * counts[word] / (counts[word] + discount) for word in shared]
            scores[title] = sum(terms)
        ranked = sorted(scores.items(), key=lambda item: -item[1])
        return [(title, score) for title, score in ranked[:top] if score > 0]

    def retrieve(self, query: str) -> str:
        """Return the best passages as lines "title: text". Raise ToolError if no passage has a word of the query."""
        if not words(query):
            raise ToolError("the query has no words; write what to look for, such as: height of the tower")
        found = self.find(query)
        if not found:
            raise ToolError(f"no passage has any word of {query!r}")
        lines = [f"{title}: {self.passages[title]}" for title, _ in found]
        return "\n".join(lines)


def words(text: str) -> list[str]:
    return WORD.findall(text.casefold())


def retrieval_tool(index: PassageIndex) -> Tool:
    return text_tool(
        "retrieve",
        f"Finds the {TOP} passages that fit a few key words best.",
        {"query": "key words, such as: height of the tower"},
        index.retrieve,
    )
