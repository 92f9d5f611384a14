"""A JSON request to a service over HTTP, repeated when the service fails."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from rlhf_lab.core.errors import LabError


class _NoRedirect(HTTPRedirectHandler):
    """A redirect is an error: following one would hand the key to another host, and turn the question into a GET."""

    def redirect_request(self, *_: Any) -> None:
        return None


OPENER = build_opener(_NoRedirect)


def post_json(
    url: str,
    question: Any,
    *,
    what: str,
    retries: int,
    timeout_s: float,
    pause_s: float = 0.5,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """POST a JSON document; returns the body of the answer.

    Args:
        what: shown in errors.
        retries: further attempts, each after twice the pause of the one before. A request that the service refuses
            (4xx, but not 429) or redirects (3xx) is not repeated.
        timeout_s: of an attempt; 0 waits.
    Raises:
        LabError: the service does not answer.
    """
    body = json.dumps(question).encode()
    all_headers = {"Content-Type": "application/json", **(headers or {})}
    for attempt in range(retries + 1):
        try:
            request = Request(url, data=body, headers=all_headers)
            with OPENER.open(request, timeout=timeout_s or None) as answer:
                return answer.read()
        except (HTTPException, OSError) as error:
            # 429 is "too many requests": it passes with time, unlike other client errors.
            refused = isinstance(error, HTTPError) and 300 <= error.code < 500 and error.code != 429
            if refused or attempt == retries:
                raise LabError(f"{what} {url} does not answer: {error}") from error
            time.sleep(pause_s * 2**attempt)
    raise AssertionError("the last attempt returns or raises")
