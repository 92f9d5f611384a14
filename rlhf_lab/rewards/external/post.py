"""JSON request to an HTTP service, with retries."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request

from rlhf_lab.core.errors import LabError
from rlhf_lab.core.http_client import ExchangeLimits, RefuseRedirects, build_opener, retry_after_s
from rlhf_lab.core.http_retry import PassingFailure, RetryPolicy, is_passing


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
        retries: maximum number of additional attempts; the pause doubles before each, unless the service names one
            (`Retry-After`). A request that the service rejects or redirects (3xx) is not repeated (`is_passing`).
        timeout_s: seconds of one attempt, from connecting to the last byte of the answer; 0 means no limit.

    Raises:
        LabError: the service does not answer.
    """
    body = json.dumps(question).encode()
    all_headers = {"Content-Type": "application/json", **(headers or {})}

    def attempt() -> bytes:
        request = Request(url, data=body, headers=all_headers)
        try:
            with build_opener(RefuseRedirects(), ExchangeLimits(timeout_s or math.inf)).open(request) as answer:
                return answer.read()
        except HTTPError as error:
            if not is_passing(error.code):
                raise
            raise PassingFailure(str(error), retry_after_s(error.headers)) from error
        except (HTTPException, OSError) as error:  # incomplete; no connection or time-out
            raise PassingFailure(str(error) or type(error).__name__) from error

    try:
        return RetryPolicy(retries, pause_s).run(attempt)
    except (PassingFailure, HTTPError) as error:
        raise LabError(f"{what} {url} does not answer: {error}") from error
