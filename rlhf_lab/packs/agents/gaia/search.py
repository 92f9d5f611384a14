"""Interface of web search, and a deterministic search provider over stored pages."""

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
    """Raised if a search service does not answer. This is not the agent's fault, so its task is repeated later."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One result of a search.

    Attributes:
        title: title of the page.
        url: address of the page.
        snippet: excerpt of the page that matches the query, one or two lines.
    """

    title: str
    url: str
    snippet: str


class SearchProvider(Protocol):
    """Interface of web search and page access, over stored pages or through a live service."""

    def search(self, query: str) -> Sequence[Hit]:
        """Return results, best first; an empty result is no error. Raise SearchUnavailable."""
        ...

    def open(self, url: str) -> str:
        """Return the text of a page or of a linked file.

        Raise ToolError if the page does not exist, and SearchUnavailable as `search` does.
        """
        ...


@dataclass(frozen=True, slots=True)
class WebPage:
    """One page of a stored web."""

    url: str
    title: str
    text: str


WORD = re.compile(r"\w+")
STOP_WORDS = frozenset(
    ("a", "an", "and", "are", "as", "at", "by", "for", "from", "in", "is", "it", "of", "on", "or", "that", "the", "to")
)
SATURATION, LENGTH_SHARE = 1.2, 0.75
"""Parameters k1 and b of BM25, with the defaults of Lucene."""
TITLE_WEIGHT = 3
"""Number of times that each word of the title counts."""
SNIPPET_WORDS = 32  # length of the excerpt of a result


class PageIndex:
    """Search provider over stored pages, ranked by BM25. Pages with equal scores are sorted by address.

    Args:
        pages: the pages.
        results: maximum number of results per search.
    """

    def __init__(self, pages: Sequence[WebPage], results: int = 5):
        in_order = sorted(pages, key=lambda page: page.url)
        self._pages = {page.url: page for page in in_order}
        self._results = results
        self._counts = {url: _word_counts(page) for url, page in self._pages.items()}
        self._lengths = {url: sum(counts.values()) for url, counts in self._counts.items()}
        total_length = sum(self._lengths.values())
        self._mean_length = total_length / max(len(self._pages), 1)
        # number of pages that contain a word
        self._pages_with = Counter(word for counts in self._counts.values() for word in counts)

    def search(self, query: str) -> list[Hit]:
        words = list(dict.fromkeys(_words(query)))
        scores = {}
        for url in self._pages:
            scores[url] = sum(self._weight(word, url) for word in words)
        matching = [url for url, score in scores.items() if score > 0]
        ranked = sorted(matching, key=lambda url: -scores[url])  # stable: addresses break ties
        hits = []
        for url in ranked[: self._results]:
            page = self._pages[url]
            hits.append(Hit(page.title, url, _snippet(page.text, words)))
        return hits

    def open(self, url: str) -> str:
        page = self._pages.get(_address(url))
        if page is None:
            raise ToolError(f"error: no page at {url}; open an address from a search or from another page")
        return f"{page.title}\n\n{page.text}"

    def _weight(self, word: str, url: str) -> float:
        """Return the BM25 weight of a query word in a page."""
        count = self._counts[url][word]
        if not count:
            return 0.0
        # BM25 (Robertson & Zaragoza 2009, eq. 3.15) with the idf of Lucene, which is never negative.
        holding = self._pages_with[word]
        idf = math.log(1 + (len(self._pages) - holding + 0.5) / (holding + 0.5))
        relative_length = self._lengths[url] / self._mean_length
        saturation = SATURATION * (1 - LENGTH_SHARE + LENGTH_SHARE * relative_length)
        return idf * count * (SATURATION + 1) / (count + saturation)


def _words(text: str) -> list[str]:
    """Return the words for a search: lower case, without stop words and the plural s."""
    words = [word.casefold() for word in WORD.findall(text)]
    return [_stem(word) for word in words if word not in STOP_WORDS]


def _stem(word: str) -> str:
    is_plural = word.endswith("s") and not word.endswith("ss")
    return word[:-1] if is_plural and len(word) > 3 else word


def _word_counts(page: WebPage) -> Counter[str]:
    words = _words(page.title) * TITLE_WEIGHT
    return Counter(words + _words(page.text))


def _snippet(text: str, words: Sequence[str]) -> str:
    """Return the excerpt of a text that contains the most query words; of several such excerpts the first."""
    tokens = text.split()
    expected = set(words)
    matches = [not expected.isdisjoint(_words(token)) for token in tokens]
    # Windows overlap by three quarters, so that matches at a window's edge are not separated.
    last_start = max(len(tokens) - SNIPPET_WORDS, 0)
    starts = range(0, last_start + 1, SNIPPET_WORDS // 4)
    # -first: of equally good windows the first one wins
    counts = {first: sum(matches[first : first + SNIPPET_WORDS]) for first in starts}
    start = max(starts, key=lambda first: (counts[first], -first))
    end = start + SNIPPET_WORDS
    before = "… " if start else ""
    after = " …" if end < len(tokens) else ""
    return f"{before}{' '.join(tokens[start:end])}{after}"


def _address(url: str) -> str:
    """Normalise an address: no surrounding spaces, fragment or final slash."""
    return url.strip().partition("#")[0].rstrip("/")
