"""HTTP transport of the two SDKs: each exchange has one deadline and a maximum size.

The SDKs' own timeout limits only the wait for the next bytes, and they read a response of any size. Both SDKs depend
on `httpx2`, and `httpx2` depends on `httpcore2`, so both packages are installed with an SDK.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpcore2
import httpx2

from rlhf_lab.core.http_client import MAX_BYTES, Exchange, ExchangeLimits, ResponseTooLarge
from rlhf_lab.packs.judging.judges.access import url_of
from rlhf_lab.packs.judging.judges.backends.settings import Service

MAX_ANSWER_BYTES = 16 * 2**20
"""Maximum size of one answer, which is text of at most `max_tokens` tokens."""
MAX_BATCH_BYTES = 4 * MAX_BYTES
"""Maximum size of the results of a batch; the services accept batches of about 256 MB."""
BATCH_SECONDS = 1800.0
"""Deadline in seconds for sending a batch and for reading its results, which are large files."""
PIECE_BYTES = 2**16
"""Number of bytes written between two checks of the deadline."""


def http_client(sdk: Any, settings: Service, limits: ExchangeLimits) -> Any:
    """Return a client for the module `sdk` that stays within the limits and follows no redirect."""
    # A redirect would send the key to another host. A compressed response could expand to any size.
    return sdk.DefaultHttpxClient(
        transport=BoundedTransport(url_of(settings), limits),
        follow_redirects=False,
        timeout=limits.seconds,
        headers={"Accept-Encoding": "identity"},
    )


def answer_limits(settings: Service) -> ExchangeLimits:
    """Return the limits of a request for one answer or for a batch's status."""
    return ExchangeLimits(settings.request_timeout_s, MAX_ANSWER_BYTES)


def batch_limits(settings: Service) -> ExchangeLimits:
    """Return the limits of sending a batch and of reading its results."""
    return ExchangeLimits(max(BATCH_SECONDS, settings.request_timeout_s), MAX_BATCH_BYTES)


class UnusableResponse(httpx2.ReadError):
    """A response that is too large or compressed. Another attempt would give the same, and would be charged too."""


class BoundedTransport(httpx2.BaseTransport):
    """Connections to one service, through the proxy that the environment sets for it, with limits per exchange."""

    def __init__(self, url: str, limits: ExchangeLimits):
        self.limits = limits
        self._current = threading.local()  # its attribute `exchange` is the exchange of the current thread
        options: dict[str, Any] = {
            "ssl_context": httpx2.create_ssl_context(),
            "max_connections": None,
            "max_keepalive_connections": 100,
            "keepalive_expiry": 5.0,
            "network_backend": _Network(self._current),
        }
        proxy = _proxy_of(url)
        if proxy is None:
            self._pool = httpcore2.ConnectionPool(**options)
        else:
            kind = httpcore2.SOCKSProxy if proxy.url.scheme.startswith("socks") else httpcore2.HTTPProxy
            self._pool = kind(proxy_url=str(proxy.url), proxy_auth=proxy.raw_auth, **options)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the full response. Raises the errors of `httpx2`, and UnusableResponse."""
        # connections are shared by threads, so the deadline belongs to the thread's exchange
        exchange = self._current.exchange = Exchange(self.limits)
        sent = httpcore2.Request(
            method=request.method,
            url=httpcore2.URL(
                scheme=request.url.raw_scheme,
                host=request.url.raw_host,
                port=request.url.port,
                target=request.url.raw_path,
            ),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        try:
            response = self._pool.handle_request(sent)
            try:
                content = b"".join(response.stream)  # type: ignore[arg-type]
            finally:
                response.close()
        except ResponseTooLarge as error:
            raise UnusableResponse(str(error), request=request) from error
        except Exception as error:
            # the SDKs catch httpx2's exceptions; those of httpcore2 have the same names
            raised = getattr(httpx2, type(error).__name__, None) if _is_of_httpcore(error) else None
            if raised is None:
                raise
            reason = str(exchange.late()) if isinstance(error, httpcore2.TimeoutException) else str(error)
            raise raised(reason, request=request) from error
        headers = httpx2.Headers(response.headers)
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding != "identity":
            if response.status < 400:
                raise UnusableResponse(
                    f"the response is compressed ({encoding[:40]!r}), which was not requested", request=request
                )
            content = b""  # the status of an error suffices, so its body need not be decompressed
            del headers["content-encoding"]
        return httpx2.Response(response.status, headers=headers, content=content)

    def close(self) -> None:
        self._pool.close()


def _is_of_httpcore(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] == "httpcore2"


def _proxy_of(url: str) -> httpx2.Proxy | None:
    parts = urlsplit(url)
    proxies = getproxies()
    address = proxies.get(parts.scheme) or proxies.get("all")
    if not address or proxy_bypass(parts.hostname or ""):  # no_proxy may name the host
        return None
    return httpx2.Proxy(address if "://" in address else f"http://{address}")


class _Network(httpcore2.NetworkBackend):
    """Network backend that limits every read and write to the time left for the current thread's HTTP exchange."""

    def __init__(self, current: threading.local):
        self._current = current
        self._sockets = httpcore2.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        remaining = _remaining(self._current.exchange, httpcore2.ConnectTimeout)
        stream = self._sockets.connect_tcp(host, port, remaining, local_address, socket_options)
        return _Stream(stream, self._current)

    def sleep(self, seconds: float) -> None:
        self._sockets.sleep(seconds)


class _Stream(httpcore2.NetworkStream):
    """Connection that enforces the deadline and size limit of the HTTP exchange of the thread that uses it."""

    def __init__(self, stream: httpcore2.NetworkStream, current: threading.local):
        self._stream = stream
        self._current = current

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        exchange: Exchange = self._current.exchange
        received = self._stream.read(max_bytes, _remaining(exchange, httpcore2.ReadTimeout))
        exchange.count(len(received))
        return received

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), PIECE_BYTES):
            remaining = _remaining(self._current.exchange, httpcore2.WriteTimeout)
            self._stream.write(buffer[start : start + PIECE_BYTES], remaining)

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        remaining = _remaining(self._current.exchange, httpcore2.ConnectTimeout)
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, remaining), self._current)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)

    def close(self) -> None:
        self._stream.close()


def _remaining(exchange: Exchange, late: type[Exception]) -> float | None:
    """Return the number of seconds left for an exchange. Raises the exception `late` if the deadline has passed."""
    try:
        return exchange.remaining()
    except TimeoutError as error:
        raise late(str(error)) from error
