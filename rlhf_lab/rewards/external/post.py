"""A question to a service over HTTP, asked again when the service fails."""

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
        retries: further attempts, each after twice the pause of the one before. A question that the service refuses
            (4xx, but not 429) or sends elsewhere (3xx) is not asked again.
        timeout_s: of an attempt; 0 waits.
    Raises:
        LabError: the service does not answer.
    """
    body, marks = json.dumps(question).encode(), {"Content-Type": "application/json", **(headers or {})}
    for attempt in range(retries + 1):
        try:
            with OPENER.open(Request(url, data=body, headers=marks), timeout=timeout_s or None) as answer:
                return answer.read()
        except (HTTPException, OSError) as error:
            refused = isinstance(error, HTTPError) and 300 <= error.code < 500 and error.code != 429
            if refused or attempt == retries:
                raise LabError(f"{what} {url} does not answer: {error}") from error
            time.sleep(pause_s * 2**attempt)
    raise AssertionError("the last attempt returns or raises")
