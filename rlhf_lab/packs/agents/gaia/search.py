"""Searching and opening pages: what a provider gives, and a deterministic one over pages that are at hand."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rlhf_lab.core.errors import LabError
from rlhf_lab.core.tools import ToolError


class SearchUnavailable(LabError, ConnectionError):
    """A search service that does not answer. The fault is not the agent's: its task is run again later."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One result of a search.

    Attributes:
        snippet: what of the page fits the query, a line or two.
    """

    title: str
    url: str
    snippet: str


class SearchProvider(Protocol):
    """A web: one that is at hand, or the live one through a service."""

    def search(self, query: str) -> Sequence[Hit]:
        """Results, best first; none is no error. Raises SearchUnavailable."""
        ...

    def open(self, url: str) -> str:
        """A page's text, or that of a file that lies there.

        Raises ToolError where there is no such page, SearchUnavailable as `search` does.
        """
        ...


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a web that is at hand."""

    url: str
    title: str
    text: str


WORD = re.compile(r"\w+")
STOP_WORDS = frozenset(
    ("a", "an", "and", "are", "as", "at", "by", "for", "from", "in", "is", "it", "of", "on", "or", "that", "the", "to")
)
SATURATION, LENGTH_SHARE = 1.2, 0.75
"""k1 and b of BM25, as Lucene has them."""
TITLE_WEIGHT = 3
"""How often a word of the title counts."""
SNIPPET_WORDS = 32


class PageIndex:
    """A provider over pages that are at hand, ranked by BM25; equal pages in the order of their addresses.

    Args:
        results: at most, per search.
    """

    def __init__(self, pages: Sequence[Page], results: int = 5):
        self._pages = {page.url: page for page in sorted(pages, key=lambda page: page.url)}
        self._results = results
        self._counts = {url: _word_counts(page) for url, page in self._pages.items()}
        self._lengths = {url: sum(counts.values()) for url, counts in self._counts.items()}
        self._mean_length = sum(self._lengths.values()) / max(len(self._pages), 1)
        self._pages_with = Counter(word for counts in self._counts.values() for word in counts)

    def search(self, query: str) -> list[Hit]:
        words = list(dict.fromkeys(_words(query)))
        scores = {url: sum(self._weight(word, url) for word in words) for url in self._pages}
        matching = [url for url, score in scores.items() if score > 0]
        best = sorted(matching, key=lambda url: -scores[url])[: self._results]  # stable: addresses break ties
        return [Hit(self._pages[url].title, url, _snippet(self._pages[url].text, words)) for url in best]

    def open(self, url: str) -> str:
        page = self._pages.get(_address(url))
        if page is None:
            raise ToolError(f"error: no page at {url}; open an address from a search or from another page")
        return f"{page.title}\n\n{page.text}"

    def _weight(self, word: str, url: str) -> float:
        """BM25 weight of a query's word in a page."""
        count = self._counts[url][word]
        if not count:
            return 0.0
        holding = self._pages_with[word]
        rarity = math.log(1 + (len(self._pages) - holding + 0.5) / (holding + 0.5))
        relative_length = self._lengths[url] / self._mean_length
        saturation = SATURATION * (1 - LENGTH_SHARE + LENGTH_SHARE * relative_length)
        return rarity * count * (SATURATION + 1) / (count + saturation)


def _words(text: str) -> list[str]:
    """Words that count in a search: lower case, without the most common ones and the s of a plural."""
    words = [word.casefold() for word in WORD.findall(text)]
    return [_stem(word) for word in words if word not in STOP_WORDS]


def _stem(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _word_counts(page: Page) -> Counter[str]:
    return Counter(_words(page.title) * TITLE_WEIGHT + _words(page.text))


def _snippet(text: str, words: Sequence[str]) -> str:
    """The stretch of a text that has most of the words, the first of several."""
    tokens = text.split()
    wanted = set(words)
    matches = [not wanted.isdisjoint(_words(token)) for token in tokens]
    starts = range(0, max(len(tokens) - SNIPPET_WORDS, 0) + 1, SNIPPET_WORDS // 4)
    start = max(starts, key=lambda first: (sum(matches[first : first + SNIPPET_WORDS]), -first))
    end = start + SNIPPET_WORDS
    before, after = "… " if start else "", " …" if end < len(tokens) else ""
    return f"{before}{' '.join(tokens[start:end])}{after}"


def _address(url: str) -> str:
    """An address as pages are listed: without spaces, a fragment or a final slash."""
    return url.strip().partition("#")[0].rstrip("/")
