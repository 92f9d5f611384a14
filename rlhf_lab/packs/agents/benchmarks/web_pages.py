"""Pages of the live web as text.

A model chooses the addresses. Only http and https on public hosts are opened, and redirects are checked as well, so no
file and no service of this machine and its network can be read. A page has one deadline, which includes redirects, and
a maximum size.

A host name is resolved once, its addresses are checked, and the connection uses one of these addresses. This prevents
DNS rebinding, where a second look-up of the same name returns a private address.
"""

from __future__ import annotations

import re
import socket
import urllib.error
import urllib.request
from contextlib import suppress
from http.client import HTTPException
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote, urlsplit

from rlhf_lab.core import http_client
from rlhf_lab.core.http_client import ExchangeLimits
from rlhf_lab.core.tools import ToolError
from rlhf_lab.packs.agents.benchmarks.html_text import html_text
from rlhf_lab.packs.agents.gaia.files import file_text, is_readable

DEADLINE_S = 20.0
"""Deadline of a page in seconds, from its first connection to its last byte."""
MOST_BYTES = 8 * 2**20  # maximum size of a page
AGENT = "Mozilla/5.0 (compatible; rlhf_lab)"
SUFFIX_OF_TYPE = {
    "text/html": ".html",
    "application/xhtml+xml": ".html",
    "application/json": ".json",
    "application/pdf": ".pdf",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": ".xlsx",
}
BINARY = (".pdf", ".xlsx")
CHARSET = re.compile(rb"charset\s*=\s*[\"']?([\w-]+)", re.ASCII | re.IGNORECASE)
"""Character set in the head of an HTML page: <meta charset="shift_jis">."""
KEPT = "/%:@!$&'()*+,;=~"
"""Characters of an address that are not quoted. `%` is one of them, because the address may be quoted already."""
UNICAST_V6 = IPv6Network("2000::/3")
"""IPv6 addresses that are assigned to hosts of the internet. It excludes NAT64 (64:ff9b::/96, 64:ff9b:1::/48),
IPv4-mapped and -compatible (::/8), local, site-local, multicast and discard addresses."""
NOT_PUBLIC = (
    IPv4Network("192.88.99.0/24"),  # 6to4 relays
    IPv6Network("2001::/23"),  # IETF protocols, including Teredo (2001::/32), which embeds an IPv4 address
    IPv6Network("2002::/16"),  # 6to4, which embeds an IPv4 address
    IPv6Network("3fff::/20"),  # documentation
)
"""Networks that some versions of `ipaddress` consider global although they have no hosts of the public web."""


def page_text(url: str, *, allow_private: bool = False) -> str:
    """Return the text of a page. HTML loses its scripts, and links are followed by their addresses. Raise ToolError.

    Args:
        url: address of the page.
        allow_private: True to allow hosts of this machine and its network.
    """
    _check_address(url, allow_private)
    limits = ExchangeLimits(DEADLINE_S, MOST_BYTES)
    opener = build_opener(_CheckedRedirect(allow_private), limits, allow_private=allow_private)
    try:
        request = urllib.request.Request(_quoted(url), headers={"User-Agent": AGENT})
        with opener.open(request) as response:
            content = response.read(MOST_BYTES + 1)  # one more byte, to notice a page that is too large
            address, content_type = response.url, response.headers.get_content_type()
            charset = response.headers.get_content_charset()
            encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    except urllib.error.HTTPError as error:
        raise ToolError(f"error: {url} answers with status {error.code}") from error
    except (OSError, HTTPException, ValueError) as error:  # no connection or time-out; incomplete; invalid address
        reason = str(error) or type(error).__name__
        raise ToolError(f"error: {url} cannot be reached: {reason}") from error
    if len(content) > MOST_BYTES:
        raise ToolError(f"error: {url} has more than {MOST_BYTES // 2**20} MiB")
    if encoding != "identity":  # no other encoding was requested, and decompression could exceed the size limit
        raise ToolError(f"error: {url} answers with the encoding {encoding[:40]!r}, which is not read")
    return _as_text(address, content_type, charset, content)


def _as_text(url: str, content_type: str, charset: str | None, content: bytes) -> str:
    # The type that the server states counts more than the ending of the address.
    suffix = SUFFIX_OF_TYPE.get(content_type, "")
    if not suffix and content_type.startswith("text/"):
        suffix = ".txt"
    if not suffix:
        suffix = PurePosixPath(urlsplit(url).path).suffix.lower()
    if not is_readable(f"page{suffix}"):
        raise ToolError(f"error: {url} is {content_type}, which cannot be read as text")
    text = file_text(f"page{suffix}", _in_utf8(content, charset) if suffix not in BINARY else content)
    return html_text(text, url) if suffix == ".html" else text


def _in_utf8(content: bytes, charset: str | None) -> bytes:
    """Return a text in UTF-8, from the character set that the server or the page states; unchanged if that is wrong."""
    stated = CHARSET.search(content[:1024])
    try:
        content.decode()  # servers often state another character set for pages in UTF-8
    except UnicodeDecodeError:
        with suppress(UnicodeError, LookupError):
            return content.decode(charset or (stated[1].decode() if stated else "utf-8")).encode()
    return content


def _check_address(url: str, allow_private: bool) -> None:
    """Raise ToolError if an address must not be opened."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    if parts.scheme not in ("http", "https") or not host:
        raise ToolError(f"error: {url!r} is no address of a page; it starts with https:// or http://")
    # Then every host may be opened.
    if allow_private:
        return
    try:
        resolve(host, port or 443, allow_private=False)
    except ToolError as error:
        raise ToolError(f"{error} ({url})") from error


def _quoted(url: str) -> str:
    """Quote the characters of path and query that HTTP does not allow."""
    parts = urlsplit(url.strip())
    path = quote(parts.path, safe=KEPT)
    query = quote(parts.query, safe=KEPT + "?")
    return parts._replace(path=path, query=query).geturl()


class _CheckedRedirect(urllib.request.HTTPRedirectHandler):
    def __init__(self, allow_private: bool):
        self._allow_private = allow_private

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        _check_address(newurl, self._allow_private)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def is_public(address: str) -> bool:
    """Return True if an IP address (as text) belongs to a single host of the public internet."""
    without_zone = address.partition("%")[0]
    parsed: IPv4Address | IPv6Address = ip_address(without_zone)
    if isinstance(parsed, IPv6Address) and parsed not in UNICAST_V6:
        return False
    is_single_host = parsed.is_global and not parsed.is_multicast and not parsed.is_reserved
    refused = [network for network in NOT_PUBLIC if network.version == parsed.version]
    return is_single_host and not any(parsed in network for network in refused)


def resolve(host: str, port: int, *, allow_private: bool) -> list[Any]:
    """Return the addresses of a host in the form of `socket.getaddrinfo`.

    Raises:
        ToolError: the host does not exist, or one of its addresses is not public.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ToolError(f"error: {host} cannot be reached: there is no such host") from error
    hosts = [str(socket_address[0]) for *_, socket_address in addresses]
    # All of them, because the connection may use any: a public name may also point to a private address.
    if not allow_private and not all(map(is_public, hosts)):
        raise ToolError(f"error: {host} is not on the public web")
    return addresses


def build_opener(
    redirects: urllib.request.HTTPRedirectHandler, limits: ExchangeLimits, *, allow_private: bool
) -> urllib.request.OpenerDirector:
    """Return a urllib opener for one http or https request, through the environment's proxy if there is one.

    The time limit in `limits` starts with this call.

    Args:
        redirects: decides which redirects are followed.
        limits: deadline and maximum size.
        allow_private: True to allow hosts of this machine and its network.
    """

    def resolve_checked(host: str, port: int, is_proxy: bool) -> list[Any]:
        # The user's environment names the proxy, so it is trusted and may be a private host.
        return resolve(host, port, allow_private=allow_private or is_proxy)

    return http_client.build_opener(redirects, limits, resolve=resolve_checked)
