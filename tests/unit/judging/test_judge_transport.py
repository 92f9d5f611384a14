"""`backends.transport` and `backends.sdk`: time and memory of an exchange, and what each error means."""

from __future__ import annotations

import functools
import gzip
import itertools

import pytest
from judge_server import MODELS, Fault, connect, question, status
from raw_server import RawServer

from rlhf_lab.core import http_client
from rlhf_lab.core.errors import JudgeUnavailable
from rlhf_lab.core.http_client import Exchange, ExchangeLimits
from rlhf_lab.packs.judging.judges.backends import transport
from rlhf_lab.packs.judging.judges.backends.anthropic import AnthropicBackend
from rlhf_lab.packs.judging.judges.backends.openai_compatible import OpenAIBackend
from rlhf_lab.packs.judging.judges.backends.sdk import SdkBackend
from rlhf_lab.packs.judging.judges.backends.settings import Anthropic, OpenAICompatible
from rlhf_lab.packs.judging.judges.service import ServiceError

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@pytest.fixture
def raw_server():
    running = RawServer()
    yield running
    running.stop()


@pytest.mark.parametrize("first", [b"HTTP/1.1 200 OK\r\nX: ", HEAD + b"\r\n"], ids=["headers", "body"])
def test_an_answer_that_drips_ends_at_the_deadline(first, raw_server, kind, tmp_path, monkeypatch):
    """Each reading of the clock takes 3 s. No wait for the next byte is long."""
    ticks = itertools.count()
    monkeypatch.setattr(transport, "Exchange", functools.partial(Exchange, clock=lambda: 3.0 * next(ticks)))
    raw_server.pieces, raw_server.again, raw_server.pause_s = [first, b"x"], True, 0.001
    client = connect(raw_server.url, kind, tmp_path, retries=0, request_timeout_s=60.0)
    with pytest.raises(JudgeUnavailable, match="ReadTimeout: not complete after 60 s"):
        client.complete_many([question(0)])
    assert client.ledger.lost == 1  # it may have been charged


def test_an_answer_without_end_is_not_read(raw_server, kind, tmp_path, monkeypatch):
    """The request is not repeated, because it would be charged again."""
    monkeypatch.setattr(http_client, "HEADER_BYTES", 1000)
    monkeypatch.setattr(transport, "MAX_ANSWER_BYTES", 2**16)
    raw_server.pieces, raw_server.again = [HEAD + b"\r\n", b"x" * 2**16], True
    client = connect(raw_server.url, kind, tmp_path, retries=3)
    with pytest.raises(JudgeUnavailable, match=r"gives no usable answer: UnusableResponse: .* more than 65536"):
        client.complete_many([question(0)])
    assert len(raw_server.requests) == 1 and client.ledger.lost == 1


def test_a_packed_answer_is_not_unpacked_and_the_status_of_a_packed_error_is_kept(server, kind, tmp_path):
    bomb = Fault(200, {"Content-Encoding": "gzip"}, gzip.compress(b" " * 10**6), charged=True)
    server.always = lambda asked: bomb
    with pytest.raises(JudgeUnavailable, match=r"UnusableResponse: the response is compressed \('gzip'\)"):
        connect(server.url, kind, tmp_path).complete_many([question(0)])
    assert len(server.asked) == 1
    assert server.asked[0].headers["accept-encoding"] == "identity"
    fault = status(401)
    fault.headers, fault.body = {"Content-Encoding": "gzip"}, gzip.compress(fault.body)
    server.always = lambda asked: fault
    with pytest.raises(JudgeUnavailable, match="401"):
        connect(server.url, kind, tmp_path).complete_many([question(0)])


@pytest.mark.parametrize(
    "variables, expected",
    [
        ({}, None),
        ({"https_proxy": "http://me:pw@proxy:3128"}, ("http", "proxy", 3128)),
        ({"all_proxy": "proxy:3128"}, ("http", "proxy", 3128)),
        ({"https_proxy": "http://proxy:3128", "no_proxy": "judge.example"}, None),
    ],
)
def test_the_proxy_of_the_environment(variables, expected, monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    proxy = transport._proxy_of("https://judge.example/v1")
    assert (proxy and (proxy.url.scheme, proxy.url.host, proxy.url.port)) == expected
    transport.BoundedTransport("https://judge.example/v1", ExchangeLimits(1.0)).close()


@pytest.mark.parametrize("date", ["Fri, 31 Dec 999999 23:59:59 GMT", "nan", "1e999", "-5"])
def test_a_wait_that_is_none_is_not_waited_for(date, server, kind, tmp_path):
    """It once was a traceback; the request is sent again after the client's own pause."""
    server.faults = [status(429, retry_after=date)]
    client = connect(server.url, kind, tmp_path)
    assert client.complete_many([question(0)])[0].text == "an answer to question 0"
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    "code, fate, passing, overloaded",
    [
        (400, "refused", False, False),
        (401, "refused", False, False),
        (404, "refused", False, False),
        (408, "lost", True, False),
        (409, "lost", True, False),
        (429, "refused", True, True),
        (500, "refused", True, False),
        (502, "lost", True, False),
        (503, "refused", True, True),
        (504, "lost", True, False),
        (529, "refused", True, True),
    ],
)
def test_each_status(server, kind, code, fate, passing, overloaded, tmp_path):
    server.always = lambda asked: status(code, "a reason", retry_after="3")
    with pytest.raises(ServiceError) as caught:
        connect(server.url, kind, tmp_path).channel.backend.send(question(0), "a key")
    error = caught.value
    assert (error.fate, error.passing, error.overloaded) == (fate, passing, overloaded)
    assert (error.status, error.retry_after_s) == (code, 3.0)
    assert error.message.startswith(f"{code} a reason")


def test_an_error_that_is_a_page(server, kind, tmp_path):
    """Gateways answer in HTML; the message is short, and on one line."""
    fault = status(502)
    fault.body, fault.headers = b"<html>\n" + b"<p>bad gateway</p>\n" * 100, {"Content-Type": "text/html"}
    server.always = lambda asked: fault
    with pytest.raises(ServiceError) as caught:
        connect(server.url, kind, tmp_path).channel.backend.send(question(0), "a key")
    assert "502" in caught.value.message and "\n" not in caught.value.message
    assert len(caught.value.message) <= 300


BACKENDS = {"anthropic": (AnthropicBackend, Anthropic), "openai_compatible": (OpenAIBackend, OpenAICompatible)}


@pytest.mark.parametrize("kind", BACKENDS)
def test_clients_leave_retries_to_the_ledger(kind):
    backend_class, settings_class = BACKENDS[kind]
    backend = backend_class(settings_class(model=MODELS[kind], request_timeout_s=7.0), sends=False)
    assert isinstance(backend, SdkBackend)
    assert backend.identity == {"kind": kind, **backend.settings.identity()}
    assert backend.client.max_retries == backend.batch_client.max_retries == 0
    # a batch is one large file, so it may take longer than an answer
    assert backend.client.timeout == 7.0 and backend.batch_client.timeout == 1800.0
