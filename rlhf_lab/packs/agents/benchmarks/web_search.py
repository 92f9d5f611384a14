"""Live web search through a service, with a store of results, so that a resumed run does not pay again.

The key is read from the environment, sent to the service, and never stored or displayed. If the service does not
answer, SearchUnavailable is raised, because this is no error of the agent. If the service rejects a query, ToolError is
raised, which the agent reads.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from http.client import HTTPException
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import urlencode

from rlhf_lab.core.files import fingerprint, make_dir, parse_json, read_json, write_json
from rlhf_lab.core.http_client import ExchangeLimits, RefuseRedirects, retry_after_s
from rlhf_lab.core.http_retry import PassingFailure, RetryPolicy, is_passing
from rlhf_lab.core.text import well_formed
from rlhf_lab.core.tools import ToolError
from rlhf_lab.packs.agents.benchmarks.web_pages import build_opener, page_text
from rlhf_lab.packs.agents.gaia.search import Hit, SearchUnavailable
from rlhf_lab.packs.judging.judges.access import scrub, without_key

LIMITS = ExchangeLimits(seconds=30.0, max_bytes=8 * 2**20)
"""Limits of one HTTP request to the search service; a search that fails is requested again."""
ATTEMPTS = 4  # per search, with a doubled pause between them
REFUSED_QUERY = (400, 413, 414, 422)
"""HTTP status codes that mean an invalid query."""


@dataclass(frozen=True)
class SearchService:
    """Interface of a search service.

    Attributes:
        url: official address.
        key_env: environment variable that usually contains the key.
        request: function of (address, key, query, number of results) that returns the HTTP request.
        entries: path to the list of results in the answer.
        fields: names of title, address and snippet in a result.
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


class WebSearch:
    """Live search provider: queries a search service and reads web pages, and stores both on disk.

    Args:
        service: name of the service.
        key: key of the service.
        store: directory; results are stored by their request, and pages by their address.
        url: address of the service; empty means its official address.
        results: number of results per search.
        pause_s: pause before the second attempt in seconds, doubled for each further one.
        open_url: returns the text of a page by its address; raises ToolError.

    Attributes:
        paid: number of searches that the service answered.
        stored: number of searches that the store answered.
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
        self._results, self._open_url = results, open_url
        self._retries = RetryPolicy(ATTEMPTS - 1, pause_s)
        self._store = store
        # one lock per file of the store
        self._locks: dict[str, Lock] = {}
        self.paid = self.stored = 0

    def search(self, query: str) -> list[Hit]:
        # A model may write lone surrogates, which can neither be sent nor stored.
        query = well_formed(query)
        key = {"service": self._name, "url": self._url, "query": query, "results": self._results}
        path = self._path("search", key)
        with self._lock(path):  # two agents with the same query pay once
            row = read_json(path)
            if not _is_row(row, "hits"):
                row = {**key, "hits": [asdict(hit) for hit in self._ask(query)]}
                self.paid += 1
                self._keep(path, row)
            else:
                self.stored += 1
        return [Hit(**hit) for hit in row["hits"]]

    def open(self, url: str) -> str:
        url = well_formed(url)
        path = self._path("pages", {"url": url})
        with self._lock(path):
            row = read_json(path)
            if not _is_row(row, "text"):
                # A page that repeats the key must not be stored with it.
                row = {"url": url, "text": without_key(self._open_url(url), self._key)}
                self._keep(path, row)
        return str(row["text"])

    def _ask(self, query: str) -> list[Hit]:
        try:
            return self._hits(self._retries.run(lambda: self._send(query)))
        except PassingFailure as failure:
            attempts = "1 attempt" if failure.attempts == 1 else f"{failure.attempts} attempts"
            problem = self._problem(f"no answer in {attempts}: {failure}")
            raise SearchUnavailable(f"{problem}; repeat the command later") from failure

    def _send(self, query: str) -> Any:
        """Send one request and return the service's answer. Raise PassingFailure, SearchUnavailable or ToolError."""
        request = self._service.request(self._url, self._key, query, self._results)
        # The user chose the service, so it may run on this machine.
        opener = build_opener(RefuseRedirects(), LIMITS, allow_private=True)
        try:
            with opener.open(request) as response:
                return parse_json(response.read())
        except urllib.error.HTTPError as error:
            text = _reason(error)
            # A passing error is repeated, the model reads an error of its query, and any other error stops the run.
            if is_passing(error.code):
                raise PassingFailure(f"status {error.code} {text}", retry_after_s(error.headers)) from error
            if error.code in REFUSED_QUERY:
                raise ToolError(self._problem(f"error: the service refuses this query: {text}")) from error
            raise SearchUnavailable(
                f"{self._problem(f'status {error.code} {text}')}; check the key, its quota and algorithm.search_url"
            ) from error
        except (OSError, HTTPException, ValueError) as error:  # no connection or time-out; incomplete; invalid JSON
            raise PassingFailure(str(error) or type(error).__name__) from error

    def _hits(self, answer: Any) -> list[Hit]:
        """Read the results in an answer. An answer without the expected fields has no results."""
        entries = answer
        for name in self._service.entries:
            # A missing level counts as empty.
            entries = entries.get(name) or {} if isinstance(entries, Mapping) else {}
        hits = []
        # A field may be missing or null, and then counts as empty.
        for entry in list(entries)[: self._results]:
            texts = [str(entry.get(field) or "") for field in self._service.fields]
            # An answer may repeat the key, e.g. in an address, so it is removed before it is stored.
            cleaned = [without_key(text, self._key) for text in texts]
            title, url, snippet = [" ".join(text.split()) for text in cleaned]
            hits.append(Hit(title, url, snippet))
        return hits

    def _problem(self, text: str) -> str:
        return scrub(f"search={self._name}: {text}", self._key)

    def _path(self, kind: str, asked: Mapping[str, Any]) -> Path:
        return self._store / kind / f"{fingerprint(asked)}.json"

    def _lock(self, path: Path) -> Lock:
        # setdefault is atomic, so two threads get the same lock.
        return self._locks.setdefault(path.name, Lock())

    def _keep(self, path: Path, row: Mapping[str, Any]) -> None:
        make_dir(path.parent)
        write_json(path, row)


def _reason(error: urllib.error.HTTPError) -> str:
    """Return the start of a service's error message; "" if it does not arrive in time."""
    try:
        return error.read(500).decode("utf-8", "replace")
    except (OSError, HTTPException):
        return ""


def _is_row(value: Any, field: str) -> bool:
    return isinstance(value, dict) and field in value
