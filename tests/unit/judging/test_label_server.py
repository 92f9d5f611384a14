"""The server of labels: what it says to whom, and that an answer is kept before it is confirmed."""

from __future__ import annotations

import json
import re
import signal
import socket
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from served_labels import Served

from rlhf_lab.core.errors import ConfigError, MissingDependency
from rlhf_lab.packs.judging.labels.command import run
from rlhf_lab.packs.judging.labels.items import FIRST, SECOND, LabelItem, shown_first
from rlhf_lab.packs.judging.labels.server import build_app
from rlhf_lab.packs.judging.labels.session import LEAST_LABELS, LabelSession
from rlhf_lab.packs.judging.labels.store import LabelStore

TestClient = pytest.importorskip("starlette.testclient", reason="label needs starlette").TestClient
TOKEN = "t" * 32
HOST = "127.0.0.1:8000"
WITH_TOKEN = {"x-label-token": TOKEN}


def items(count: int) -> list[LabelItem]:
    prompt = "\n\nSystem: short\n\nHuman: <b>hi</b>\n\nAssistant:"
    return [
        LabelItem(f"i{k}", str(k), prompt, f"<script>{k}</script>", f"b{k}", ("secret-A", "secret-B"), FIRST, 1.0)
        for k in range(count)
    ]


@pytest.fixture
def session(tmp_path: Path) -> LabelSession:
    store = LabelStore(tmp_path / "x.sqlite", create=True)
    store.start(items(LEAST_LABELS + 2), seed=0)
    return LabelSession(store, "ana", 0, "the judge")


@pytest.fixture
def client(session: LabelSession) -> Any:
    app = build_app(session, TOKEN, 8000, "export")
    return TestClient(app, base_url=f"http://{HOST}")


def answer(client: Any, event: str, choice: str = "1", **changes: Any) -> Any:
    item = client.get("/state", headers=WITH_TOKEN).json()["item"]
    body = {"event": event, "item": item["id"], "choice": choice, "seconds": 2.5, **changes}
    return client.post("/answer", json=body, headers=WITH_TOKEN)


@pytest.mark.parametrize(
    "path", ["/", "/state", "/figures", "/answer", "/undo", "/nothing", "/?token=wrong", "/?token="]
)
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS"])
def test_without_the_token_there_is_nothing(client, method, path):
    for headers in ({}, {"x-label-token": "wrong"}, {"x-label-token": "é".encode()}):
        refused = client.request(method, path, headers=headers)
        assert (refused.status_code, refused.content) == (404, b"")
        assert "server" not in refused.headers and "set-cookie" not in refused.headers


def test_the_token_in_a_url_opens_the_page_alone(client):
    assert client.get(f"/?token={TOKEN}").status_code == 200
    assert client.get(f"/state?token={TOKEN}").status_code == 404
    assert client.post(f"/answer?token={TOKEN}", json={}).status_code == 404  # what a form of another page could send


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:8001", "evil.example:8000"])
def test_another_host_is_refused(client, host):
    assert client.get("/state", headers={**WITH_TOKEN, "host": host}).status_code == 404
    assert client.get(f"/?token={TOKEN}", headers={"host": host}).status_code == 404
    assert client.get("/state", headers={**WITH_TOKEN, "host": "localhost:8000"}).status_code == 200


def test_the_page_allows_only_its_own_script_and_style(client):
    first, second = client.get(f"/?token={TOKEN}"), client.get(f"/?token={TOKEN}")
    policy = first.headers["content-security-policy"]
    (nonce,) = set(re.findall(r"'nonce-([^']+)'", policy))
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert re.findall(r"<(?:script|style)[^>]*>", first.text) == [
        f'<style nonce="{nonce}">',
        f'<script nonce="{nonce}">',
    ]
    assert nonce not in second.text
    assert not re.findall(r"""(?:src|href)=["'](?!data:)|https?://|style=|\son\w+=""", first.text)
    assert first.headers["referrer-policy"] == "no-referrer" and first.headers["cache-control"] == "no-store"


def test_the_page_is_told_nothing_that_gives_a_reply_away(client, session):
    state = client.get("/state", headers=WITH_TOKEN)
    assert "secret" not in state.text and "winner" not in state.text and "score" not in state.text
    item = state.json()["item"]
    assert item["prompt"][1] == {"speaker": "Person", "text": "<b>hi</b>", "calls": ""}
    shown = [response["text"] for response in item["replies"]]
    expected = ["<script>0</script>", "b0"]
    assert shown == (expected if shown_first("i0", 0, "ana") == FIRST else expected[::-1])
    assert state.headers["content-type"] == "application/json"


def test_choices_are_kept_in_terms_of_the_item(client, session):
    for index, choice in enumerate(["1", "2", "tie", "skip"]):
        assert answer(client, f"e{index}", choice).status_code == 200
    sides = [shown_first(f"i{number}", 0, "ana") for number in range(2)]
    expected = [sides[0], SECOND if sides[1] == FIRST else FIRST, "tie"]
    assert [label.winner for label in session.store.labels()] == expected
    assert [label.shown for label in session.store.labels()][:2] == sides
    state = client.get("/state", headers=WITH_TOKEN).json()
    assert state["progress"] == {
        **{"total": 12, "labelled": 3, "ties": 1, "skipped": 1, "left": 8},
        "median_seconds": 2.5,
    }


def test_retries_second_windows_and_undo(client):
    item = client.get("/state", headers=WITH_TOKEN).json()["item"]["id"]
    assert answer(client, "e0").json()["state"]["progress"]["labelled"] == 1
    assert answer(client, "e0", item=item).status_code == 200  # the same answer, sent again
    conflict = answer(client, "e1", item=item)
    assert conflict.status_code == 409 and "another window" in conflict.json()["error"]
    assert conflict.json()["state"]["progress"]["labelled"] == 1
    last = conflict.json()["state"]["last"]
    undone = client.post("/undo", json={"event": "u0", "undoes": last}, headers=WITH_TOKEN)
    assert undone.json()["state"]["item"]["id"] == item and undone.json()["state"]["last"] is None
    assert client.post("/undo", json={"event": "u1", "undoes": last}, headers=WITH_TOKEN).status_code == 409


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"event": 1}',
        b'{"event": "e", "item": "i0", "choice": "3", "seconds": 1}',
        b'{"event": "\\ud800", "item": "i0", "choice": "1", "seconds": 1}',
        b"[" * 9_000,
        b'{"event": ' + b"9" * 5_000 + b"}",
    ],
)
def test_bodies_that_are_no_answer(client, session, body):
    refused = client.post("/answer", content=body, headers=WITH_TOKEN)
    assert refused.status_code == 400 and "an answer is" in refused.json()["error"]
    assert client.post("/answer", content=b"x" * 10_001, headers=WITH_TOKEN).status_code == 404
    assert client.post("/answer", content=iter([b"{}"]), headers=WITH_TOKEN).status_code == 404  # of unknown length
    assert not session.store.labels()


def test_numbers_of_many_digits(client, session):
    """JSON has whole numbers that neither a float nor SQLite holds."""
    large = "9" * 400
    undo = client.post("/undo", content=f'{{"event": "u0", "undoes": {large}}}', headers=WITH_TOKEN)
    assert undo.status_code == 400 and "an undo is" in undo.json()["error"]
    item = client.get("/state", headers=WITH_TOKEN).json()["item"]["id"]
    body = f'{{"event": "e0", "item": "{item}", "choice": "1", "seconds": {large}}}'
    assert client.post("/answer", content=body, headers=WITH_TOKEN).status_code == 200


def test_a_disk_that_refuses_is_said_and_can_be_retried(client, session):
    session.store._connection.execute("PRAGMA query_only=ON")
    refused = answer(client, "e0")
    assert refused.status_code == 503 and "cannot be written" in refused.json()["error"]
    session.store._connection.execute("PRAGMA query_only=OFF")
    assert answer(client, "e0").status_code == 200
    with sqlite3.connect(session.store.path) as another:  # what is confirmed is on disk
        assert another.execute("SELECT event FROM events").fetchall() == [("e0",)]


# The command as a process


@pytest.fixture
def source(tmp_path: Path) -> Path:
    rows = [{"prompt": f"q{k}", "chosen": f"a{k}", "rejected": f"b{k}"} for k in range(4)]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def serve() -> Iterator[Any]:
    begun: list[Served] = []

    def start(*words: str) -> Served:
        begun.append(Served(*words))
        return begun[-1]

    yield start
    for served in begun:
        served.close()


@pytest.mark.slow
def test_the_command_serves_this_machine_and_goes_on_after_a_kill(source, serve):
    first = serve(str(source), "annotator=ana")
    assert urlsplit(first.url).hostname == "127.0.0.1"
    assert first.ask("GET", "/state", token=False) == (404, None)
    item = first.ask("GET", "/state")[1]["item"]
    body = {"event": "e0", "item": item["id"], "choice": "2", "seconds": 1}
    assert first.ask("POST", "/answer", body)[0] == 200
    assert first.end(signal.SIGKILL) == -signal.SIGKILL

    second = serve(str(source), "annotator=ana")
    assert second.url != first.url
    state = second.ask("GET", "/state")[1]
    assert state["progress"]["labelled"] == 1 and state["item"]["id"] != item["id"]
    again = second.ask("POST", "/undo", {"event": "u0", "undoes": state["last"]})[1]["state"]
    assert again["item"] == item  # in the same order, too
    assert second.end(signal.SIGTERM) == 0
    assert "0 of 4 labelled by ana" in second.printed and f"export={source.stem}.labels.jsonl" in second.printed
    assert second.printed.count("token=") == 1


def test_a_port_that_is_taken(source):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port={port}: .*choose another"):
            run([str(source), f"port={port}"])


def test_a_missing_library_is_named(monkeypatch, source):
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    monkeypatch.delitem(sys.modules, "rlhf_lab.packs.judging.labels.server")
    with pytest.raises(MissingDependency, match=r"label needs a library .* pip install 'rlhf_lab\[label\]'"):
        run([str(source)])
