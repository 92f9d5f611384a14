"""Pages of the live web as text.

Addresses come from a model. Only http and https are opened, only on public hosts, at every redirect too: neither files
nor services of this machine and its network. The connection goes to the address that was checked. A page has one
deadline, redirects included, and a maximum size.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote, urlsplit

from rlhf_lab.core.tools import ToolError
from rlhf_lab.packs.agents.benchmarks.html_text import html_text
from rlhf_lab.packs.agents.benchmarks.web_connection import Limits, build_opener, resolve
from rlhf_lab.packs.agents.gaia.files import file_text, is_readable

DEADLINE_S = 20.0
"""Of a page, from its first connection to its last byte."""
MOST_BYTES = 8 * 2**20
AGENT = "Mozilla/5.0 (compatible; rlhf_lab)"
SUFFIX_OF_TYPE = {
    "text/html": ".html",
    "application/xhtml+xml": ".html",
    "application/json": ".json",
    "application/pdf": ".pdf",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": ".xlsx",
}
KEPT = "/%:@!$&'()*+,;=~"
"""What stays as it is in an address; % because it may be quoted already."""


def page_text(url: str, *, allow_private: bool = False) -> str:
    """A page's text; of HTML without scripts, with the addresses of its links. Raises ToolError.

    Args:
        allow_private: also on hosts of this machine and its network.
    """
    _check_address(url, allow_private)
    limits = Limits(DEADLINE_S, MOST_BYTES)
    opener = build_opener(_CheckedRedirect(allow_private), limits, allow_private=allow_private)
    try:
        request = urllib.request.Request(_quoted(url), headers={"User-Agent": AGENT})
        with opener.open(request) as response:
            content = response.read(MOST_BYTES + 1)
            address, content_type = response.url, response.headers.get_content_type()
            encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    except urllib.error.HTTPError as error:
        raise ToolError(f"error: {url} answers with status {error.code}") from error
    except (OSError, HTTPException, ValueError) as error:  # no connection, time-out; cut off; no address
        raise ToolError(f"error: {url} cannot be reached: {str(error) or type(error).__name__}") from error
    if len(content) > MOST_BYTES:
        raise ToolError(f"error: {url} has more than {MOST_BYTES // 2**20} MiB")
    if encoding != "identity":  # nothing else was asked for, and nothing is unpacked
        raise ToolError(f"error: {url} answers with the encoding {encoding[:40]!r}, which is not read")
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
        resolve(host, port or 443, allow_private=False)
    except ToolError as error:
        raise ToolError(f"{error} ({url})") from error


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
