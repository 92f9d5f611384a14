"""`packs.agents.benchmarks.web_pages`: only public hosts, only the address that was checked, one deadline."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from raw_server import RawServer

from rlhf_lab.core.tools import ToolError
from rlhf_lab.packs.agents.benchmarks import web_pages
from rlhf_lab.packs.agents.benchmarks.web_pages import page_text

PUBLIC = "93.184.216.34"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RawServer]:
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    running = RawServer()
    yield running
    running.stop()


NOT_PUBLIC = """127.0.0.1 10.0.0.1 100.64.0.1 169.254.169.254 192.88.99.1 198.18.0.1 224.0.0.1 239.255.255.250 240.0.0.1
    255.255.255.255 :: ::1 ::7f00:1 ::ffff:127.0.0.1 ::ffff:8.8.8.8 ::ffff:0:127.0.0.1 64:ff9b::7f00:1 64:ff9b::808:808
    64:ff9b:1::a00:1 2001::7f00:1 2001:db8::1 2002:7f00:1:: 3fff::1 5f00::1 fc00::1 fe80::1%eth0 fec0::1 ff02::1
    ff0e::1"""
"""Private, shared and multicast addresses, relays, and IPv6 addresses that embed an IPv4 address."""


def test_single_public_hosts() -> None:
    for address in NOT_PUBLIC.split():
        assert not web_pages.is_public(address), address
    for address in ("8.8.8.8", PUBLIC, "2606:4700::1111", "2a00:1450:4001::200e"):
        assert web_pages.is_public(address), address


def test_one_address_that_is_not_public_refuses_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", names(lambda call: [PUBLIC, "127.0.0.1"]))
    with pytest.raises(ToolError, match="is not on the public web"):
        page_text("http://page.example/")


def names(addresses: Callable[[int], list[str]]) -> Callable[..., list[Any]]:
    """A `getaddrinfo` that gives the addresses of the first call, the second, …"""
    calls = 0

    def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        nonlocal calls
        calls += 1
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses(calls)]

    return getaddrinfo


def test_a_name_that_changes_after_the_check_leads_nowhere(server: RawServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: the address of the connection is checked, whatever an earlier look-up gave."""
    server.pieces = [b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nsecret"]
    monkeypatch.setattr(socket, "getaddrinfo", names(lambda call: [PUBLIC if call == 1 else "127.0.0.1"]))
    with pytest.raises(ToolError, match="is not on the public web"):
        page_text(f"http://page.example:{server.port}/")
    assert not server.requests


def test_the_connection_goes_to_the_address_that_was_checked(
    server: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []
    server.pieces = [b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nseen"]
    # the name leads elsewhere from the third look-up on; the page's check and the connection make two
    monkeypatch.setattr(socket, "getaddrinfo", names(lambda call: ["127.0.0.1" if call < 3 else "127.0.0.9"]))
    monkeypatch.setattr(web_pages, "is_public", lambda address: not checked.append(address))
    assert page_text(f"http://page.example:{server.port}/") == "seen"
    assert checked == ["127.0.0.1", "127.0.0.1"]
    assert f"Host: page.example:{server.port}".encode() in server.requests[0]


@pytest.mark.parametrize(
    ("pieces", "part"),
    [
        ([b"HTTP/1.1 200 OK\r\nX: ", b"x"], "header"),
        ([b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n", b"x"], "body"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0"], "size of a chunk"),
        ([b"HTTP/1.1 302 Found\r\nLocation: /y\r\n\r\n", b"x"], "body of a redirect"),
    ],
)
def test_a_page_that_drips_ends_at_the_deadline(
    pieces: list[bytes], part: str, server: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No read waits for long, so that no time-out of a read is ever reached."""
    monkeypatch.setattr(web_pages, "DEADLINE_S", 0.5)
    server.pieces, server.again, server.pause_s = pieces, True, 0.02
    with pytest.raises(ToolError, match=r"cannot be reached: .*not complete after 0\.5 s"):
        page_text(f"http://127.0.0.1:{server.port}/", allow_private=True)
    assert server.requests, part


def test_redirects_share_the_deadline(server: RawServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_pages, "DEADLINE_S", 0.5)
    server.pieces = [b"HTTP/1.1 302 Found\r\nContent-Length: 1\r\n", b"Location: /y\r\n\r\nx"]
    server.pause_s = 0.2  # of ten redirects, 2 s and more
    with pytest.raises(ToolError, match=r"not complete after 0\.5 s"):
        page_text(f"http://127.0.0.1:{server.port}/", allow_private=True)
    assert 1 <= len(server.requests) < 10


def test_the_body_of_a_redirect_has_a_maximum_size(server: RawServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_pages, "MOST_BYTES", 1000)
    server.pieces, server.again = [b"HTTP/1.1 302 Found\r\nLocation: /y\r\n\r\n", b"x" * 2**16], True
    with pytest.raises(ToolError, match="the answer has more than 1000 bytes"):
        page_text(f"http://127.0.0.1:{server.port}/", allow_private=True)


def test_the_proxy_of_the_environment_may_be_a_private_host(server: RawServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user named it; the page behind it is checked as any other."""
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.port}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    server.pieces = [b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nseen"]
    assert page_text(f"http://{PUBLIC}/x") == "seen"
    assert server.requests[0].startswith(f"GET http://{PUBLIC}/x HTTP".encode())
    with pytest.raises(ToolError, match="is not on the public web"):
        page_text("http://10.0.0.1/x")
    assert len(server.requests) == 1
