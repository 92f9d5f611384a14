"""Interface of web search, and a deterministic search provider over stored pages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rlhf_lab.core.errors import LabError
from rlhf_lab.core.tools import ToolError
from rlhf_lab.packs.agents.tools.retrieval import Bm25


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
        self._pages = {page.url: page for page in sorted(pages, key=lambda page: page.url)}
        self._results = results
        words = {url: _words(page.title) * TITLE_WEIGHT + _words(page.text) for url, page in self._pages.items()}
        self._index = Bm25(words)

    def search(self, query: str) -> list[Hit]:
        words = _words(query)
        pages = [self._pages[url] for url, _ in self._index.rank(words, self._results)]
        return [Hit(page.title, page.url, _snippet(page.text, words)) for page in pages]

    def open(self, url: str) -> str:
        page = self._pages.get(_address(url))
        if page is None:
            raise ToolError(f"error: no page at {url}; open an address from a search or from another page")
        return f"{page.title}\n\n{page.text}"


def _words(text: str) -> list[str]:
    """Return the words for a search: lower case, without stop words and the plural s."""
    words = [word.casefold() for word in WORD.findall(text)]
    return [_stem(word) for word in words if word not in STOP_WORDS]


def _stem(word: str) -> str:
    is_plural = word.endswith("s") and not word.endswith("ss")
    return word[:-1] if is_plural and len(word) > 3 else word


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
