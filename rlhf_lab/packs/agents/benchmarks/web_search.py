"""The live web through a search service, and a store of what was asked, so that a resumed run pays for nothing twice.

The key is read from the environment, sent to the service, and never stored or shown. A service that does not answer
raises SearchUnavailable, which is no fault of the agent; a query that it refuses is a ToolError, which the agent reads.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from http.client import HTTPException
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import urlencode

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import fingerprint, make_folder, parse_json, read_json, write_json
from rlhf_lab.core.tools import ToolError
from rlhf_lab.packs.agents.benchmarks.web_connection import Limits, build_opener
from rlhf_lab.packs.agents.benchmarks.web_pages import page_text
from rlhf_lab.packs.agents.gaia.search import Hit, SearchUnavailable
from rlhf_lab.packs.judging.judges.keys import scrub, without_key

LIMITS = Limits(seconds=30.0, max_bytes=8 * 2**20)
"""Of one attempt at a search."""
ATTEMPTS = 4
LONGEST_PAUSE_S = 60.0
PASSING = (408, 425, 429, 500, 502, 503, 504)
"""Statuses after which the same request may succeed."""
REFUSED_QUERY = (400, 413, 414, 422)
"""Statuses that blame the query."""


@dataclass(frozen=True)
class SearchService:
    """How one service is asked.

    Attributes:
        key_env: environment variable that usually has its key.
        request: (address, key, query, results) → what is sent.
        entries: the list of results in its answer.
        fields: of an entry: title, address, snippet.
    """

    url: str
    key_env: str
    request: Callable[[str, str, str, int], urllib.request.Request]
    entries: tuple[str, ...]
    fields: tuple[str, str, str]


def _ask_tavily(url: str, key: str, query: str, results: int) -> urllib.request.Request:
    return _post(url, {"Authorization": f"Bearer {key}"}, {"query": query, "max_results": results})


def _ask_brave(url: str, key: str, query: str, results: int) -> urllib.request.Request:
    address = f"{url}?{urlencode({'q': query, 'count': results})}"
    return urllib.request.Request(address, headers={"X-Subscription-Token": key, "Accept": "application/json"})


def _ask_serper(url: str, key: str, query: str, results: int) -> urllib.request.Request:
    return _post(url, {"X-API-KEY": key}, {"q": query, "num": results})


def _post(url: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> urllib.request.Request:
    content = json.dumps(body).encode()
    return urllib.request.Request(url, content, {**headers, "Content-Type": "application/json"}, method="POST")


SERVICES: Mapping[str, SearchService] = {
    "tavily": SearchService(
        "https://api.tavily.com/search", "TAVILY_API_KEY", _ask_tavily, ("results",), ("title", "url", "content")
    ),
    "brave": SearchService(
        "https://api.search.brave.com/res/v1/web/search",
        "BRAVE_API_KEY",
        _ask_brave,
        ("web", "results"),
        ("title", "url", "description"),
    ),
    "serper": SearchService(
        "https://google.serper.dev/search", "SERPER_API_KEY", _ask_serper, ("organic",), ("title", "link", "snippet")
    ),
}


def live_search(service: str, store: Path, *, key_env: str = "", url: str = "", results: int = 5) -> WebSearch:
    """A service with its key from the environment. Raises ConfigError where the key is not there."""
    variable = key_env or SERVICES[service].key_env
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigError(
            f"algorithm.search={service}: the environment variable {variable} has no key; set it "
            f"(export {variable}=…), or name another one with algorithm.search_key_env"
        )
    return WebSearch(service, key, store, url=url, results=results)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to another host."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class WebSearch:
    """A search service and the pages of the web, with a store.

    Args:
        store: folder; results lie there by what was asked, pages by their address.
        url: address of the service; empty is its own.
        pause_s: before the second attempt; doubled for each further one.
        open_url: a page's text by its address; raises ToolError.

    Attributes:
        paid: searches that the service answered.
        stored: searches that the store answered.
    """

    def __init__(
        self,
        service: str,
        key: str,
        store: Path,
        *,
        url: str = "",
        results: int = 5,
        pause_s: float = 1.0,
        open_url: Callable[[str], str] = page_text,
    ):
        self._name, self._service, self._key = service, SERVICES[service], key
        self._url = url or self._service.url
        self._results, self._pause_s, self._open_url = results, pause_s, open_url
        self._store = store
        self._locks: dict[str, Lock] = {}
        self.paid = self.stored = 0

    def search(self, query: str) -> list[Hit]:
        query = query.encode("utf-8", "replace").decode()  # half a surrogate pair cannot be sent
        asked = {"service": self._name, "url": self._url, "query": query, "results": self._results}
        path = self._path("search", asked)
        with self._lock(path):  # two agents that ask the same pay once
            row = read_json(path)
            if not _is_row(row, "hits"):
                row = {**asked, "hits": [asdict(hit) for hit in self._ask(query)]}
                self.paid += 1
                self._keep(path, row)
            else:
                self.stored += 1
        return [Hit(**hit) for hit in row["hits"]]

    def open(self, url: str) -> str:
        path = self._path("pages", {"url": url})
        with self._lock(path):
            row = read_json(path)
            if not _is_row(row, "text"):
                row = {"url": url, "text": without_key(self._open_url(url), self._key)}
                self._keep(path, row)
        return str(row["text"])

    def _ask(self, query: str) -> list[Hit]:
        pause_s = self._pause_s
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._hits(self._send(query))
            except _Passing as failure:
                if attempt == ATTEMPTS:
                    problem = self._problem(f"no answer in {ATTEMPTS} attempts: {failure}")
                    raise SearchUnavailable(f"{problem}; give the same command again later") from failure
                time.sleep(min(max(pause_s, failure.retry_after_s), LONGEST_PAUSE_S))
                pause_s *= 2
        raise AssertionError("the last attempt returns or raises")

    def _send(self, query: str) -> Any:
        """One attempt: the service's answer. Raises _Passing, SearchUnavailable or ToolError."""
        request = self._service.request(self._url, self._key, query, self._results)
        # the user names the service, which may be one of this machine
        opener = build_opener(_NoRedirect(), LIMITS, allow_private=True)
        try:
            with opener.open(request) as response:
                return parse_json(response.read())
        except urllib.error.HTTPError as error:
            text = _reason(error)
            if error.code in PASSING:
                raise _Passing(f"status {error.code} {text}", error.headers.get("Retry-After")) from error
            if error.code in REFUSED_QUERY:
                raise ToolError(self._problem(f"error: the service refuses this query: {text}")) from error
            raise SearchUnavailable(
                f"{self._problem(f'status {error.code} {text}')}; check the key, its quota and algorithm.search_url"
            ) from error
        except (OSError, HTTPException, ValueError) as error:  # no connection, time-out; cut off; no JSON
            raise _Passing(str(error) or type(error).__name__) from error

    def _hits(self, answer: Any) -> list[Hit]:
        """Results in an answer. An answer without any is a search that found nothing."""
        entries = answer
        for name in self._service.entries:
            entries = entries.get(name) or {} if isinstance(entries, Mapping) else {}
        hits = []
        for entry in list(entries)[: self._results]:
            title, url, snippet = (str(entry.get(field) or "") for field in self._service.fields)
            hits.append(Hit(*(" ".join(without_key(text, self._key).split()) for text in (title, url, snippet))))
        return hits

    def _problem(self, text: str) -> str:
        return scrub(f"search={self._name}: {text}", self._key)

    def _path(self, kind: str, asked: Mapping[str, Any]) -> Path:
        return self._store / kind / f"{fingerprint(asked)}.json"

    def _lock(self, path: Path) -> Lock:
        return self._locks.setdefault(path.name, Lock())

    def _keep(self, path: Path, row: Mapping[str, Any]) -> None:
        make_folder(path.parent)
        write_json(path, row)


def _reason(error: urllib.error.HTTPError) -> str:
    """The beginning of what a service says with an error; "" where that does not arrive in time."""
    try:
        return error.read(500).decode("utf-8", "replace")
    except (OSError, HTTPException):
        return ""


class _Passing(Exception):
    """An attempt that may be repeated."""

    def __init__(self, message: str, retry_after: str | None = None):
        super().__init__(message)
        is_seconds = retry_after is not None and retry_after.strip().isdecimal()
        self.retry_after_s = float(retry_after) if retry_after and is_seconds else 0.0


def _is_row(value: Any, field: str) -> bool:
    return isinstance(value, dict) and field in value
