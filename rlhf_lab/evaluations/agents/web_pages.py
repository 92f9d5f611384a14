"""Pages of the live web as text.

Addresses come from a model. Only http and https are opened, only on public hosts, at every redirect too: neither files
nor services of this machine and its network. A host whose name leads to another address between the check and the
connection is not caught; where that matters, run with a network that ends at a proxy.
"""

from __future__ import annotations

import ipaddress
import socket
import urllib.error
import urllib.request
from html.parser import HTMLParser
from http.client import HTTPException
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from rlhf_lab.core.tools import ToolError
from rlhf_lab.environments.gaia.files import file_text, is_readable

TIMEOUT_S = 20.0
MOST_BYTES = 8 * 2**20
AGENT = "Mozilla/5.0 (compatible; rlhf_lab)"
SUFFIX_OF_TYPE = {
    "text/html": ".html",
    "application/xhtml+xml": ".html",
    "application/json": ".json",
    "application/pdf": ".pdf",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": ".xlsx",
}
HIDDEN = ("script", "style", "noscript", "template", "svg", "head")
BLOCKS = ("p", "div", "li", "tr", "br", "h1", "h2", "h3", "h4", "h5", "h6", "section", "article", "table", "ul", "ol")
VOID = ("br",)
KEPT = "/%:@!$&'()*+,;=~"
"""What stays as it is in an address; % because it may be quoted already."""


def page_text(url: str, *, allow_private: bool = False) -> str:
    """A page's text; of HTML without scripts, with the addresses of its links. Raises ToolError.

    Args:
        allow_private: also on hosts of this machine and its network.
    """
    _check_address(url, allow_private)
    opener = urllib.request.build_opener(_CheckedRedirect(allow_private))
    try:
        request = urllib.request.Request(_quoted(url), headers={"User-Agent": AGENT})
        with opener.open(request, timeout=TIMEOUT_S) as response:
            content = response.read(MOST_BYTES + 1)
            address, content_type = response.url, response.headers.get_content_type()
    except urllib.error.HTTPError as error:
        raise ToolError(f"error: {url} answers with status {error.code}") from error
    except (OSError, HTTPException, ValueError) as error:  # no connection, time-out; cut off; no address
        raise ToolError(f"error: {url} cannot be reached: {str(error) or type(error).__name__}") from error
    if len(content) > MOST_BYTES:
        raise ToolError(f"error: {url} has more than {MOST_BYTES // 2**20} MiB")
    return _as_text(address, content_type, content)


def _as_text(url: str, content_type: str, content: bytes) -> str:
    suffix = SUFFIX_OF_TYPE.get(content_type, "")
    if not suffix and content_type.startswith("text/"):
        suffix = ".txt"
    if not suffix:
        suffix = PurePosixPath(urlsplit(url).path).suffix.lower()
    if not is_readable(f"page{suffix}"):
        raise ToolError(f"error: {url} is {content_type}, which cannot be read as text")
    text = file_text(f"page{suffix}", content)
    return html_text(text, url) if suffix == ".html" else text


def _check_address(url: str, allow_private: bool) -> None:
    """Raises ToolError for an address that must not be opened."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    if parts.scheme not in ("http", "https") or not host:
        raise ToolError(f"error: {url!r} is no address of a page; it starts with https:// or http://")
    if allow_private:
        return
    try:
        addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(host, port or 443, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError) as error:
        raise ToolError(f"error: {url} cannot be reached: there is no host {host}") from error
    if not all(ipaddress.ip_address(address.partition("%")[0]).is_global for address in addresses):
        raise ToolError(f"error: {url} is not on the public web")


def _quoted(url: str) -> str:
    """An address with the letters that HTTP does not take in its path and query as %XX."""
    parts = urlsplit(url.strip())
    return parts._replace(path=quote(parts.path, safe=KEPT), query=quote(parts.query, safe=KEPT + "?")).geturl()


class _CheckedRedirect(urllib.request.HTTPRedirectHandler):
    def __init__(self, allow_private: bool):
        self._allow_private = allow_private

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        _check_address(newurl, self._allow_private)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def html_text(html: str, url: str) -> str:
    """The visible text of HTML: title first, blocks on lines of their own, the address behind the text of a link."""
    reader = _Reader(url)
    reader.feed(html)
    reader.close()
    lines = (" ".join(line.split()) for line in "".join(reader.parts).split("\n"))
    body = "\n".join(line for line in lines if line)
    title = " ".join("".join(reader.title).split())
    return f"{title}\n\n{body}" if title else body


class _Reader(HTMLParser):
    def __init__(self, url: str):
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.title: list[str] = []
        self._url = url
        self._hidden: list[str] = []
        self._links: list[str] = []
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "title" and "svg" not in self._hidden:
            self._in_title = True
        elif tag == "body":
            self._hidden.clear()  # a head that was never closed
        elif tag in HIDDEN:
            self._hidden.append(tag)
        elif tag in BLOCKS:
            self.parts.append("\n")
        elif tag == "a":
            self._links.append(self._address(dict(attrs).get("href") or ""))
        elif tag in ("td", "th"):
            self.parts.append("\t")

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        elif tag in self._hidden:
            del self._hidden[self._hidden.index(tag) :]
        elif tag in BLOCKS and tag not in VOID:
            self.parts.append("\n")
        elif tag == "a" and self._links:
            address = self._links.pop()
            if address and not self._hidden:
                self.parts.append(f" ({address})")

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title.append(data)
        elif not self._hidden:
            self.parts.append(data)

    def _address(self, link: str) -> str:
        """Where a link leads; "" for one within the page or to no page."""
        try:
            address = urljoin(self._url, link.strip())
        except ValueError:
            return ""
        is_page = address.startswith(("http://", "https://")) and not link.startswith("#")
        return address if is_page else ""
