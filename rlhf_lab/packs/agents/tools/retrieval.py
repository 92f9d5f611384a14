"""Retrieval of passages by their words with BM25 (Robertson & Zaragoza 2009, eq. 3.15).

The idf is that of Lucene, which is never negative:
    score(q, d) = Σ_{w in q} idf(w) · tf / (tf + k1·(1 − b + b·|d|/mean |d|)),   idf(w) = log(1 + (N − n + ½)/(n + ½))
Not included: stemming, synonyms, stop words (the idf already gives frequent words a low weight).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rlhf_lab.core.tools import Tool, ToolError, text_tool

WORD = re.compile(r"\w+")
SATURATION = 1.2
"""Parameter k1 of BM25: saturation of repeated occurrences of a word."""
LENGTH_WEIGHT = 0.75
"""Parameter b of BM25: penalty for long passages, from 0 to 1."""
TOP = 3
"""Number of passages that a search returns."""


class Bm25:
    """Index of documents by their words.

    Args:
        words: document → its words.
    """

    def __init__(self, words: Mapping[str, Sequence[str]]):
        self._counts = {document: Counter(of_document) for document, of_document in words.items()}
        self._mean_length = sum(map(len, words.values())) / max(1, len(words))
        documents_with = Counter(word for counts in self._counts.values() for word in counts)
        # log(1 + …), as in Lucene's BM25: it is positive even for a word of more than half of the documents.
        self._idf = {word: math.log1p((len(words) - n + 0.5) / (n + 0.5)) for word, n in documents_with.items()}

    def rank(self, query: Iterable[str], top: int) -> list[tuple[str, float]]:
        """Return (document, score) of those with a word of the query, best first. Equal scores keep the order of the
        documents.
        """
        query_words = set(query)
        scores = {}
        for document, counts in self._counts.items():
            length = counts.total() / self._mean_length if self._mean_length else 0.0
            discount = SATURATION * (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * length)
            # Sorted, because a float sum depends on its order, and the order of a set differs between processes.
            shared = sorted(query_words & counts.keys())
            scores[document] = sum(self._idf[word] * counts[word] / (counts[word] + discount) for word in shared)
        ranked = sorted(scores.items(), key=lambda item: -item[1])
        return [(document, score) for document, score in ranked[:top] if score > 0]


class PassageIndex:
    """Index of passages.

    Args:
        passages: title → text. Passages with equal scores keep this order.
    """

    def __init__(self, passages: Mapping[str, str]):
        self.passages = passages
        self._index = Bm25({title: words(f"{title} {text}") for title, text in passages.items()})

    def find(self, query: str, top: int = TOP) -> list[tuple[str, float]]:
        """Return (title, score) of the passages that have a word in common with the query, best first."""
        return self._index.rank(words(query), top)

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
