"""HTTP connections for addresses that come from a model: to public hosts alone, and with one deadline for everything.

A host's name is resolved once, its addresses are checked, and the connection goes to one of those addresses: a name
that leads elsewhere a moment later (DNS rebinding) has no second look-up to answer. The deadline covers connecting,
every redirect, headers and body, so that a server that sends a byte at a time cannot hold an agent. Resolving a name
has no deadline here; the system's resolver has its own.
"""

from __future__ import annotations

import io
import socket
import ssl
import time
import urllib.request
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any

from rlhf_lab.core.tools import ToolError

UNICAST_V6 = IPv6Network("2000::/3")
"""The IPv6 addresses that are assigned to hosts of the internet. Outside are NAT64 (64:ff9b::/96, 64:ff9b:1::/48),
IPv4-mapped and -compatible (::/8), local, site-local, multicast and discard addresses."""
NOT_PUBLIC = (
    IPv4Network("192.88.99.0/24"),  # relays of 6to4
    IPv6Network("2001::/23"),  # protocols of the IETF, with Teredo (2001::/32), which has an IPv4 address in it
    IPv6Network("2002::/16"),  # 6to4, which has an IPv4 address in it
    IPv6Network("3fff::/20"),  # documentation
)
"""What `ipaddress` calls global, in some versions of Python, and is no host of the public web."""
HEADER_BYTES = 2**20
"""Room for headers and redirects beside the content of an answer."""


@dataclass(frozen=True)
class Limits:
    """What one request may take, redirects included.

    Attributes:
        seconds: from its start to the last byte.
        max_bytes: of the content.
    """

    seconds: float
    max_bytes: int


def is_public(address: str) -> bool:
    """Whether an IP address, as text, is one of a single host of the public internet."""
    parsed: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
    if isinstance(parsed, IPv6Address) and parsed not in UNICAST_V6:
        return False
    is_single_host = parsed.is_global and not parsed.is_multicast and not parsed.is_reserved
    return is_single_host and not any(parsed in network for network in NOT_PUBLIC if network.version == parsed.version)


def resolve(host: str, port: int, *, allow_private: bool) -> list[Any]:
    """The addresses of a host, as `socket.getaddrinfo` has them.

    Raises:
        ToolError: the host is not there, or one of its addresses is not public.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ToolError(f"error: {host} cannot be reached: there is no such host") from error
    if not allow_private and not all(is_public(str(address[4][0])) for address in addresses):
        raise ToolError(f"error: {host} is not on the public web")
    return addresses


def build_opener(
    redirects: urllib.request.HTTPRedirectHandler, limits: Limits, *, allow_private: bool
) -> urllib.request.OpenerDirector:
    """An opener for one request by http or https, through the proxy of the environment where there is one.

    The time of `limits` begins now.

    Args:
        redirects: decides which redirects are followed.
        allow_private: also to hosts of this machine and its network.
    """
    connect = _Connector(time.monotonic() + limits.seconds, limits, allow_private)
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        _Handler(connect),
        _TLSHandler(connect),
        urllib.request.HTTPDefaultErrorHandler(),
        redirects,
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


@dataclass(frozen=True)
class _Connector:
    """Opens the sockets of one request.

    Attributes:
        deadline: on the clock of `time.monotonic`.
    """

    deadline: float
    limits: Limits
    allow_private: bool

    def remaining(self) -> float:
        """Seconds that are left. Raises TimeoutError where none are."""
        seconds = self.deadline - time.monotonic()
        if seconds <= 0:
            raise self.late()
        return seconds

    def late(self) -> TimeoutError:
        return TimeoutError(f"not complete after {self.limits.seconds:g} s")

    def open(self, host: str, port: int, *, is_proxy: bool) -> socket.socket:
        """A socket that is connected to a checked address of the host.

        Args:
            is_proxy: the host is the proxy that the user's environment names, and may be a private one.
        """
        addresses = resolve(host, port, allow_private=self.allow_private or is_proxy)
        for tried, (family, kind, protocol, _, address) in enumerate(addresses):
            connection = socket.socket(family, kind, protocol)
            try:
                connection.settimeout(self.remaining() / (len(addresses) - tried))
                connection.connect(address)
            except OSError:
                connection.close()
                if tried == len(addresses) - 1:
                    raise
                continue
            connection.settimeout(self.remaining())
            return connection
        raise OSError(f"{host} has no address")


class _Reader(io.RawIOBase):
    """What a server sends, up to the deadline and a number of bytes."""

    def __init__(self, connection: socket.socket, connect: _Connector):
        self._connection, self._connect = connection, connect
        self._raw = connection.makefile("rb", buffering=0)
        self._bytes_left = connect.limits.max_bytes + HEADER_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._connection.settimeout(self._connect.remaining())
        try:
            count = self._raw.readinto(buffer)
        except TimeoutError as error:
            raise self._connect.late() from error
        self._bytes_left -= count or 0
        if self._bytes_left < 0:
            raise OSError(f"the answer has more than {self._connect.limits.max_bytes} bytes")
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Source:
    """A socket as HTTPResponse takes it."""

    def __init__(self, connection: socket.socket, connect: _Connector):
        self._connection, self._connect = connection, connect

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self._connection, self._connect))


class _Connection(HTTPConnection):
    def __init__(self, host: str, *, connect: _Connector, is_proxy: bool, **options: Any):
        super().__init__(host, **options)
        self._connect, self._is_proxy = connect, is_proxy

    def response_class(self, connection: socket.socket, **options: Any) -> HTTPResponse:  # type: ignore[override]
        return HTTPResponse(_Source(connection, self._connect), **options)  # type: ignore[arg-type]

    def connect(self) -> None:
        self.sock = self._connect.open(self.host, self.port, is_proxy=self._is_proxy)
        if self._tunnel_host:  # type: ignore[attr-defined]
            self._tunnel()  # type: ignore[attr-defined]


class _TLSConnection(_Connection, HTTPSConnection):
    def __init__(self, host: str, *, context: ssl.SSLContext, **options: Any):
        super().__init__(host, **options, context=context)
        self._tls = context

    def connect(self) -> None:
        super().connect()
        name = self._tunnel_host or self.host  # type: ignore[attr-defined]
        self.sock.settimeout(self._connect.remaining())
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=name)


class _Handler(urllib.request.HTTPHandler):
    def __init__(self, connect: _Connector):
        super().__init__()
        self._connect = connect

    def http_open(self, req: urllib.request.Request) -> HTTPResponse:
        def connection(host: str, **options: Any) -> _Connection:
            return _Connection(host, connect=self._connect, is_proxy=req.has_proxy(), **options)

        return self.do_open(connection, req)


class _TLSHandler(urllib.request.HTTPSHandler):
    def __init__(self, connect: _Connector):
        super().__init__()
        self._connect = connect

    def https_open(self, req: urllib.request.Request) -> HTTPResponse:
        # urllib asks a proxy for a tunnel to the host of an https address
        is_proxy = bool(getattr(req, "_tunnel_host", None)) or req.has_proxy()

        def connection(host: str, **options: Any) -> _TLSConnection:
            context = ssl.create_default_context()
            return _TLSConnection(host, connect=self._connect, is_proxy=is_proxy, context=context, **options)

        return self.do_open(connection, req)
