"""Live search against a server on this machine: protocols, store, failures, keys; and pages of the web as text."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rlhf_lab.core.tools import ToolError
from rlhf_lab.packs.agents.benchmarks import web_pages
from rlhf_lab.packs.agents.benchmarks.web_pages import page_text
from rlhf_lab.packs.agents.benchmarks.web_search import ATTEMPTS, SERVICES, WebSearch
from rlhf_lab.packs.agents.gaia.search import Hit, SearchUnavailable

KEY = "tvly-secret-1234"
FOUND = {"title": "Gull", "text": "A white\n bird.", "url": "https://a.example/gull"}
ANSWERS = {
    "tavily": {"results": [{"title": "Gull", "url": FOUND["url"], "content": FOUND["text"], "score": 0.9}]},
    "brave": {"web": {"results": [{"title": "Gull", "url": FOUND["url"], "description": FOUND["text"]}]}},
    "serper": {"organic": [{"title": "Gull", "link": FOUND["url"], "snippet": FOUND["text"]}]},
}


@dataclass
class Server:
    """Server whose next answers are (status, headers, body); afterwards it sends `body` with 200."""

    url: str = ""
    body: bytes = b"{}"
    content_type: str = "application/json"
    next: list[tuple[int, dict[str, str], bytes]] = field(default_factory=list)
    requests: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            state.requests.append((self.command, self.path, headers, body))
            status, extra, content = state.next.pop(0) if state.next else (200, {}, state.body)
            if not status:
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in {"Content-Type": state.content_type, **extra}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = answer

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        state.url = f"http://127.0.0.1:{http.server_address[1]}"
        yield state
        http.shutdown()
        thread.join()


def web(server: Server, store: Path, service: str = "tavily", **options: Any) -> WebSearch:
    return WebSearch(service, KEY, store, url=f"{server.url}/search", pause_s=0.001, **options)


@pytest.mark.parametrize("service", SERVICES)
def test_each_protocol(service: str, server: Server, tmp_path: Path) -> None:
    server.body = json.dumps(ANSWERS[service]).encode()
    hits = web(server, tmp_path, service, results=3).search("white bird & co")
    assert hits == [Hit("Gull", FOUND["url"], "A white bird.")]
    ((method, path, headers, body),) = server.requests
    if service == "brave":
        assert (method, path) == ("GET", "/search?q=white+bird+%26+co&count=3")
        assert headers["x-subscription-token"] == KEY
    else:
        assert (method, path) == ("POST", "/search")
        names = {"tavily": ("query", "max_results"), "serper": ("q", "num")}[service]
        assert json.loads(body) == dict(zip(names, ("white bird & co", 3), strict=True))
        assert KEY in (headers.get("authorization"), headers.get("x-api-key"), headers.get("authorization", "")[7:])


def test_nothing_is_paid_for_twice(server: Server, tmp_path: Path) -> None:
    server.body = json.dumps(ANSWERS["tavily"]).encode()
    first = web(server, tmp_path)
    resumed = web(server, tmp_path)
    assert first.search("bird") == first.search("bird") == resumed.search("bird")
    assert (first.paid, first.stored, resumed.paid, resumed.stored) == (1, 1, 0, 1)
    assert len(server.requests) == 1
    for other in (web(server, tmp_path, results=2), web(server, tmp_path, "serper")):
        other.search("bird")
    resumed.search("birds")
    assert len(server.requests) == 4, "another query, service or number of results is another question"


def test_threads_that_ask_the_same_pay_once(server: Server, tmp_path: Path) -> None:
    search = web(server, tmp_path)
    threads = [threading.Thread(target=search.search, args=("bird",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (search.paid, search.stored, len(server.requests)) == (1, 7, 1)


def test_a_damaged_row_is_asked_again(server: Server, tmp_path: Path) -> None:
    search = web(server, tmp_path)
    search.search("bird")
    (file,) = (tmp_path / "search").iterdir()
    file.write_text('{"hits": [')
    search.search("bird")
    assert search.paid == 2 and json.loads(file.read_text())["hits"] == []


def test_no_key_is_stored_or_shown(server: Server, tmp_path: Path) -> None:
    entry = {"title": KEY, "url": f"https://a.example/?k={KEY}", "content": f"your key is {KEY}"}
    server.body = json.dumps({"results": [entry]}).encode()
    search = web(server, tmp_path, open_url=lambda url: f"page with {KEY}")
    shown = f"{search.search('bird')} {search.open('https://a.example')}"
    for status in (400, 401):
        server.next = [(status, {}, f"bad key {KEY}".encode())]
        with pytest.raises((ToolError, SearchUnavailable)) as error:
            search.search(f"query {status}")
        shown += str(error.value)
    stored = "".join(path.read_text() for path in tmp_path.rglob("*.json"))
    assert len(list(tmp_path.rglob("*.json"))) == 2
    assert KEY not in shown and KEY not in stored and "[key]" in stored


def test_passing_failures_are_repeated(server: Server, tmp_path: Path) -> None:
    server.body = json.dumps(ANSWERS["tavily"]).encode()
    server.next = [(429, {"Retry-After": "0"}, b""), (0, {}, b""), (503, {}, b"busy")]
    assert len(web(server, tmp_path).search("bird")) == 1
    assert len(server.requests) == ATTEMPTS == 4


@pytest.mark.parametrize("failure", [(503, {}, b"busy"), (0, {}, b""), (200, {}, b"<html>"), (200, {}, b"[" * 100_000)])
def test_a_service_that_does_not_answer_is_no_fault_of_the_agent(
    failure: tuple[int, dict[str, str], bytes], server: Server, tmp_path: Path
) -> None:
    server.next = [failure] * ATTEMPTS
    with pytest.raises(SearchUnavailable, match=f"search=tavily: no answer in {ATTEMPTS} attempts"):
        web(server, tmp_path).search("bird")
    assert not list(tmp_path.rglob("*.json")) and issubclass(SearchUnavailable, ConnectionError)


@pytest.mark.parametrize("status", [401, 402, 403, 404, 432])
def test_a_refused_key_or_quota_is_not_repeated(status: int, server: Server, tmp_path: Path) -> None:
    server.next = [(status, {}, b"no")]
    with pytest.raises(SearchUnavailable, match=f"status {status} no; check the key, its quota"):
        web(server, tmp_path).search("bird")
    assert len(server.requests) == 1


def test_a_refused_query_is_read_by_the_agent(server: Server, tmp_path: Path) -> None:
    server.next = [(422, {}, b"query too long")]
    with pytest.raises(ToolError, match="refuses this query: query too long"):
        web(server, tmp_path).search("bird" * 200)


def test_the_key_does_not_follow_a_redirect(server: Server, tmp_path: Path) -> None:
    server.next = [(302, {"Location": f"{server.url}/elsewhere"}, b"")]
    with pytest.raises(SearchUnavailable, match="status 302"):
        web(server, tmp_path, "brave").search("bird")
    assert [path for _, path, _, _ in server.requests] == ["/search?q=bird&count=5"]


@pytest.mark.parametrize("answer", [b"[]", b"{}", b'{"results": null}', b'{"results": [{"title": null}]}', b"7"])
def test_odd_answers_are_empty_results(answer: bytes, server: Server, tmp_path: Path) -> None:
    server.body = answer
    hits = web(server, tmp_path).search("bird \ud800")
    assert hits in ([], [Hit("", "", "")])


def test_pages_are_kept(server: Server, tmp_path: Path) -> None:
    opened: list[str] = []

    def open_url(url: str) -> str:
        opened.append(url)
        return "text"

    for _ in range(2):
        assert web(server, tmp_path, open_url=open_url).open("https://a.example/x") == "text"
    assert opened == ["https://a.example/x"]


# Pages


def local(url: str) -> str:
    return page_text(url, allow_private=True)


def test_pages_by_their_type(server: Server) -> None:
    def read(body: bytes, content_type: str, path: str = "") -> str:
        server.body, server.content_type = body, content_type
        return local(f"{server.url}{path}")

    assert read(b"<p>one", "text/html; charset=utf-8", "/caf\u00e9 x?q=\u00e9") == "one"
    assert server.requests[-1][1] == "/caf%C3%A9%20x?q=%C3%A9"
    assert read("<p>Пётр".encode("windows-1251"), "text/html; charset=windows-1251") == "Пётр"
    assert read('<meta charset="shift_jis"><p>東京'.encode("shift_jis"), "text/html") == "東京"
    assert read("<p>é".encode(), "text/html; charset=iso-8859-1") == "é"  # it is UTF-8
    assert read("<p>é".encode("cp1252"), "text/html; charset=rot13") == "é"
    assert read(b'{"a": 1}', "application/json") == '{"a": 1}'
    assert read(b'{"a": 1}', "application/octet-stream", "/data.csv") == '{"a": 1}'
    with pytest.raises(ToolError, match="image/png, which cannot be read"):
        read(b"", "image/png")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ((404, {}, b""), "status 404"),
        ((0, {}, b""), "cannot be reached"),
        ((200, {}, b"x" * 11), "has more than"),
        ((200, {"Content-Encoding": "gzip"}, b"\x1f\x8b"), "the encoding 'gzip', which is not read"),
    ],
)
def test_pages_that_fail_are_the_agents_to_read(
    answer: tuple[int, dict[str, str], bytes], problem: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_pages, "MOST_BYTES", 10)
    server.next = [answer]
    with pytest.raises(ToolError, match=problem):
        local(server.url)


REFUSED = """file:///etc/passwd ftp://a.example/x gopher://a.example etc/passwd http:// http://[::1
    http://a.example:99999/ http://127.0.0.1/ http://127.1/ http://2130706433/ http://0x7f.1/ http://localhost/
    http://[::1]/ http://[::ffff:127.0.0.1]/ http://0.0.0.0/ http://10.0.0.1/ http://192.168.1.1/
    http://169.254.169.254/latest/meta-data/ http://user@127.0.0.1/ http://no-such-host.invalid/"""


@pytest.mark.parametrize("url", ["", *REFUSED.split()])
def test_only_the_public_web_is_opened(url: str) -> None:
    with pytest.raises(ToolError, match="error: "):
        page_text(url)


def test_a_redirect_leads_nowhere_else(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    public, port = server.url, int(server.url.rpartition(":")[2])
    check, resolve = web_pages._check_address, web_pages.resolve

    def checked(url: str, private: bool) -> None:
        if url != public:
            check(url, private)

    def resolved(host: str, to: int, *, allow_private: bool) -> list[Any]:
        return resolve(host, to, allow_private=allow_private or to == port)

    monkeypatch.setattr(web_pages, "_check_address", checked)
    monkeypatch.setattr(web_pages, "resolve", resolved)
    targets = "http://localhost:1/secret ftp://127.0.0.1:1/secret file:///etc/passwd http://169.254.169.254/"
    for target in targets.split():
        server.next = [(302, {"Location": target}, b"")]
        with pytest.raises(ToolError, match=r"not on the public web|is no address|302"):
            page_text(public)
    assert len(server.requests) == 4
