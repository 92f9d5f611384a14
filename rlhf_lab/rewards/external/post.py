"""JSON request to an HTTP service, with retries."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request

from rlhf_lab.core.errors import LabError
from rlhf_lab.core.http_client import ExchangeLimits, RefuseRedirects, build_opener


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
    """POST a JSON document and return the body of the answer.

    Args:
        what: name of the service in messages.
        retries: maximum number of additional attempts; the pause doubles before each. A request that the service
            rejects (4xx except 429) or redirects (3xx) is not repeated.
        timeout_s: seconds of one attempt, from connecting to the last byte of the answer; 0 means no limit.
        pause_s: pause in seconds before the first retry.

    Raises:
        LabError: the service does not answer.
    """
    body = json.dumps(question).encode()
    all_headers = {"Content-Type": "application/json", **(headers or {})}
    for attempt in range(retries + 1):
        try:
            request = Request(url, data=body, headers=all_headers)
            with build_opener(RefuseRedirects(), ExchangeLimits(timeout_s or math.inf)).open(request) as answer:
                return answer.read()
        except (HTTPException, OSError) as error:
            # 429 means "too many requests": unlike other client errors it disappears with time.
            refused = isinstance(error, HTTPError) and 300 <= error.code < 500 and error.code != 429
            if refused or attempt == retries:
                raise LabError(f"{what} {url} does not answer: {error}") from error
            time.sleep(pause_s * 2**attempt)
    raise AssertionError("the last attempt returns or raises")
