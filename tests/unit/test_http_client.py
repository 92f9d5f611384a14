"""`core.http_client`: one deadline and a maximum size for a full exchange, and the wait that a service requests."""

from __future__ import annotations

import functools
import itertools
import math
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from raw_server import RawServer

from rlhf_lab.core import http_client
from rlhf_lab.core.errors import LabError
from rlhf_lab.core.http_client import Exchange, ExchangeLimits, ResponseTooLarge, build_opener, retry_after_s
from rlhf_lab.monitoring import alerts
from rlhf_lab.rewards.external.post import post_json
from rlhf_lab.sampling.vllm.client import ServerFailed, VllmClient

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RawServer]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    running = RawServer()
    yield running
    running.stop()


@pytest.fixture
def fast_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reading of the clock takes 3 s, so that a deadline of 60 s passes within 20 reads."""
    ticks = itertools.count()
    monkeypatch.setattr(http_client, "Exchange", functools.partial(Exchange, clock=lambda: 3.0 * next(ticks)))


def drip(server: RawServer, first: bytes) -> None:
    """Send a byte now and then, for ever: no wait for the next byte is long."""
    server.pieces, server.again, server.pause_s = [first, b"x"], True, 0.001


def test_an_exchange_has_one_deadline_and_a_maximum_size() -> None:
    now = [100.0]
    exchange = Exchange(ExchangeLimits(5.0), clock=lambda: now[0])
    now[0] = 103.0
    assert exchange.remaining() == 2.0
    now[0] = 105.0
    with pytest.raises(TimeoutError, match="not complete after 5 s"):
        exchange.remaining()
    assert Exchange(ExchangeLimits(math.inf)).remaining() is None
    exchange = Exchange(ExchangeLimits(1.0, max_bytes=10))
    exchange.count(http_client.HEADER_BYTES + 10)
    with pytest.raises(ResponseTooLarge, match="more than 10 bytes"):
        exchange.count(1)


@pytest.mark.parametrize("first", [b"HTTP/1.1 200 OK\r\nX: ", HEAD], ids=["headers", "body"])
def test_a_response_that_drips_ends_at_the_deadline(first: bytes, server: RawServer, fast_clock: None) -> None:
    drip(server, first)
    opener = build_opener(urllib.request.HTTPRedirectHandler(), ExchangeLimits(60.0))
    with pytest.raises(OSError, match="not complete after 60 s"), opener.open(server.url) as response:
        response.read()


def test_a_response_without_end_is_cut(server: RawServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "HEADER_BYTES", 1000)
    server.pieces, server.again = [HEAD, b"x" * 2**16], True
    opener = build_opener(urllib.request.HTTPRedirectHandler(), ExchangeLimits(60.0, max_bytes=2**16))
    with pytest.raises(ResponseTooLarge, match="more than 65536 bytes"), opener.open(server.url) as response:
        response.read()


def test_a_reward_service_that_drips(server: RawServer, fast_clock: None) -> None:
    drip(server, HEAD)
    with pytest.raises(LabError, match="not complete after 60 s"):
        post_json(server.url, {}, what="reward service", retries=0, timeout_s=60.0)


def test_a_webhook_that_drips(server: RawServer, fast_clock: None, monkeypatch: pytest.MonkeyPatch) -> None:
    drip(server, b"HTTP/1.1 200 OK\r\nX: ")
    monkeypatch.setenv("MY_HOOK", server.url)
    assert "not complete after 60 s" in alerts._post("MY_HOOK", b"{}", 60.0)


def test_a_vllm_server_that_drips(server: RawServer, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    slow = functools.partial(Exchange, clock=lambda: 3.0 * next(ticks))
    monkeypatch.setattr("rlhf_lab.sampling.vllm.client.Exchange", slow)
    drip(server, HEAD)
    with pytest.raises(ServerFailed, match=r"did not answer /x within 60 s \(rollout.timeout_s\)"):
        VllmClient(server.url, 60.0).post("/x", {})


@pytest.mark.parametrize(
    "headers, seconds",
    [
        ({"retry-after": "2.5"}, 2.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "nan", "retry-after": "9"}, 9.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1e300"}, http_client.LONGEST_RETRY_AFTER_S),
        ({}, None),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:10 GMT"}, 0.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:50 GMT"}, 10.0),
        ({"retry-after": "Fri, 31 Dec 99999999999999999999 23:59:59 GMT"}, None),
        ({"retry-after": "Fri, 31 Dec 9998 23:59:59 GMT"}, http_client.LONGEST_RETRY_AFTER_S),
        ({"retry-after": "Fri, 99 Foo 2020 99:99:99 GMT"}, None),
    ],
)
def test_how_long_a_service_asks_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(headers, now=lambda: 100.0) == seconds
