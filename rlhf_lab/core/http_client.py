"""HTTP exchanges that always end: one deadline from connecting to the last byte, and a maximum response size.

A socket timeout limits only the wait for the next bytes: a server that sends one byte now and then never reaches it.
Here every read, write and redirect of an exchange gets the time left until one deadline. Resolving a host name has no
deadline here; the system's resolver has its own.

`build_opener` serves urllib, `Connection` serves `http.client`. Other clients create an `Exchange` themselves and
report the bytes of each response to it.
"""

from __future__ import annotations

import email.utils
import io
import math
import socket
import ssl
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from typing import Any

MAX_BYTES = 64 * 2**20
"""Default maximum bytes of a response. Services answer with texts and numbers, which are far smaller."""
HEADER_BYTES = 2**20
"""Additional bytes allowed for headers and redirects."""
LONGEST_RETRY_AFTER_S = 7 * 86400.0
"""Maximum seconds to wait before a retry. A longer wait requested by a service is shortened to this (7 days)."""


@dataclass(frozen=True)
class ExchangeLimits:
    """Limits of one exchange, including its redirects.

    Attributes:
        seconds: seconds from the start to the last byte; infinity means no limit.
        max_bytes: maximum bytes of the content.
    """

    seconds: float
    max_bytes: int = MAX_BYTES


class ResponseTooLarge(OSError):
    """A response has more bytes than its limits allow."""


class Exchange:
    """Remaining time and bytes of one exchange, which starts when the object is created.

    Args:
        clock: function that returns seconds; must not go backwards.
    """

    def __init__(self, limits: ExchangeLimits, clock: Callable[[], float] = time.monotonic):
        self.limits, self._clock = limits, clock
        self._deadline = clock() + limits.seconds
        self._bytes_left = limits.max_bytes + HEADER_BYTES

    def remaining(self) -> float | None:
        """Return the remaining seconds, or None without a limit. Raise TimeoutError if no time is left."""
        if math.isinf(self._deadline):
            return None
        seconds = self._deadline - self._clock()
        if seconds <= 0:
            raise self.late()
        return seconds

    def late(self) -> TimeoutError:
        """Return the error for an exchange that exceeded its deadline."""
        return TimeoutError(f"not complete after {self.limits.seconds:g} s")

    def count(self, received: int) -> None:
        """Count bytes of the response. Raise ResponseTooLarge if there are more than the limit."""
        self._bytes_left -= received
        if self._bytes_left < 0:
            raise ResponseTooLarge(f"the answer has more than {self.limits.max_bytes} bytes")


class _DeadlineReader(io.RawIOBase):
    """Bytes that a server sends, limited by the deadline and the maximum size of an exchange."""

    def __init__(self, connection: socket.socket, exchange: Exchange):
        self._connection, self._exchange = connection, exchange
        self._raw = connection.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        # The remaining time shrinks with every read, so the timeout is set each time.
        self._connection.settimeout(self._exchange.remaining())
        try:
            count = self._raw.readinto(buffer)
        except TimeoutError as error:
            raise self._exchange.late() from error
        self._exchange.count(count or 0)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _SocketSource:
    """Socket in the form that HTTPResponse expects."""

    def __init__(self, connection: socket.socket, exchange: Exchange):
        self._connection, self._exchange = connection, exchange

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_DeadlineReader(self._connection, self._exchange))


Resolver = Callable[[str, int, bool], list[Any]]
"""(host, port, True if it is the user's proxy) → addresses in the format of `socket.getaddrinfo`."""


def resolve_any(host: str, port: int, is_proxy: bool) -> list[Any]:
    """Return the addresses of a host on any network. Raise OSError if the host does not exist."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # IDNA cannot encode the name
        raise OSError(f"{host} is not a valid host name") from error


class Connection(HTTPConnection):
    """HTTP connection for consecutive exchanges. Set `exchange` before each of them.

    The connection uses an address that `resolve` returned. The name is not resolved again, so the address that was
    checked is the address that is used.
    """

    def __init__(
        self,
        host: str,
        port: int | None = None,
        *,
        exchange: Exchange,
        resolve: Resolver = resolve_any,
        is_proxy: bool = False,
        **options: Any,
    ):
        super().__init__(host, port, **options)
        self.exchange = exchange
        self._resolve, self._is_proxy = resolve, is_proxy

    def response_class(self, connection: socket.socket, **options: Any) -> HTTPResponse:  # type: ignore[override]
        return HTTPResponse(_SocketSource(connection, self.exchange), **options)  # type: ignore[arg-type]

    def connect(self) -> None:
        self.sock = self._open_socket()
        if self._tunnel_host:  # type: ignore[attr-defined]
            self._tunnel()  # type: ignore[attr-defined]

    def _open_socket(self) -> socket.socket:
        addresses = self._resolve(self.host, self.port, self._is_proxy)
        for tried, (family, kind, protocol, _, address) in enumerate(addresses):
            connection = socket.socket(family, kind, protocol)
            try:
                remaining = self.exchange.remaining()
                # split the remaining time, so that an address that does not respond leaves time for the others
                connection.settimeout(remaining and remaining / (len(addresses) - tried))
                connection.connect(address)
                # Requests are small; without TCP_NODELAY Nagle's algorithm would delay them.
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.settimeout(self.exchange.remaining())
            except OSError:
                connection.close()
                if tried == len(addresses) - 1:
                    raise
                continue
            return connection
        raise OSError(f"{self.host} has no address")

    def send(self, data: Any) -> None:
        if self.sock is not None:  # else `send` connects first
            self.sock.settimeout(self.exchange.remaining())
        super().send(data)


class TLSConnection(Connection, HTTPSConnection):
    """HTTPS version of `Connection`."""

    def __init__(self, host: str, *, context: ssl.SSLContext, **options: Any):
        super().__init__(host, **options, context=context)
        self._tls = context

    def connect(self) -> None:
        super().connect()
        # Behind a proxy the TCP connection goes to the proxy; the certificate has to match the tunnel's target.
        name = self._tunnel_host or self.host  # type: ignore[attr-defined]
        self.sock.settimeout(self.exchange.remaining())
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=name)


class RefuseRedirects(urllib.request.HTTPRedirectHandler):
    """Handler that makes a redirect an error: it would send the key to another host, and turn a POST into a GET."""

    def redirect_request(self, *args: Any, **options: Any) -> None:
        return None


def build_opener(
    redirects: urllib.request.HTTPRedirectHandler,
    limits: ExchangeLimits,
    *,
    resolve: Resolver = resolve_any,
    proxies: Mapping[str, str] | None = None,
) -> urllib.request.OpenerDirector:
    """Return an opener for one HTTP or HTTPS exchange. The time of `limits` starts now.

    Args:
        redirects: handler that decides which redirects are followed.
        resolve: function that returns the addresses of a host, or raises the caller's error for a forbidden host.
        proxies: proxy by scheme; None uses the proxies of the environment.
    """
    # All handlers share one exchange, so that redirects do not restart the deadline.
    exchange = Exchange(limits)
    opener = urllib.request.OpenerDirector()
    # Only these handlers: the default opener of urllib would also accept file: and ftp: addresses.
    for handler in (
        urllib.request.ProxyHandler(None if proxies is None else dict(proxies)),
        _Handler(exchange, resolve),
        _TLSHandler(exchange, resolve),
        urllib.request.HTTPDefaultErrorHandler(),
        redirects,
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


class _Handler(urllib.request.HTTPHandler):
    def __init__(self, exchange: Exchange, resolve: Resolver):
        super().__init__()
        self._exchange, self._resolve = exchange, resolve

    def http_open(self, req: urllib.request.Request) -> HTTPResponse:
        def connection(host: str, **options: Any) -> Connection:
            return Connection(host, exchange=self._exchange, resolve=self._resolve, is_proxy=req.has_proxy(), **options)

        return self.do_open(connection, req)


class _TLSHandler(urllib.request.HTTPSHandler):
    def __init__(self, exchange: Exchange, resolve: Resolver):
        super().__init__()
        self._exchange, self._resolve = exchange, resolve

    def https_open(self, req: urllib.request.Request) -> HTTPResponse:
        # urllib requests a tunnel from the proxy for an https address, so `has_proxy` alone does not show the proxy
        is_proxy = bool(getattr(req, "_tunnel_host", None)) or req.has_proxy()

        def connection(host: str, **options: Any) -> TLSConnection:
            context = ssl.create_default_context()
            return TLSConnection(
                host, exchange=self._exchange, resolve=self._resolve, is_proxy=is_proxy, context=context, **options
            )

        return self.do_open(connection, req)


def retry_after_s(headers: Mapping[str, str] | Message, now: Callable[[], float] = time.time) -> float | None:
    """Return the seconds that a service asks to wait: `retry-after-ms`, or `retry-after` in seconds or as a date.

    Return None if no header can be parsed. The result is at most LONGEST_RETRY_AFTER_S.
    """
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name) or "") * unit
        except ValueError:
            continue
        if math.isfinite(seconds):
            return min(max(0.0, seconds), LONGEST_RETRY_AFTER_S)
    try:
        date = email.utils.parsedate_tz(headers.get("retry-after") or "")
        seconds = email.utils.mktime_tz(date) - now() if date else math.nan
    except (ValueError, OverflowError, TypeError, IndexError):  # e.g. the year 999999, or day 40 of a month
        return None
    return min(max(0.0, seconds), LONGEST_RETRY_AFTER_S) if math.isfinite(seconds) else None
