"""Errors of the two SDKs, which share their shape, as what the transport needs to know of them."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from rlhf_lab.packs.judging.judges.keys import scrub
from rlhf_lab.packs.judging.judges.service import ServiceError

OVERLOADED = (429, 503, 529)
"""The service is too busy: for every request alike, and none was taken on."""
MAYBE_CHARGED = (408, 409, 502, 504, 524)
"""Someone between here and the model gave up waiting, or the same request is under way there."""
REPLAYED = "idempotent-replayed"
"""Header of a service that answers a repeated idempotency key with its first answer."""
LONGEST_MESSAGE = 300
Result = TypeVar("Result")


def call(sdk: Any, key: str, do: Callable[..., Result], *args: Any) -> Result:
    """Call a function of an SDK. Raises ServiceError for what the SDK raises, without the key.

    Args:
        sdk: the module, `anthropic` or `openai`.
    """
    try:
        return do(*args)
    except sdk.APIStatusError as error:
        raise _of_status(error, key) from None
    except sdk.APIConnectionError as error:
        raise _of_connection(error, key) from None
    except (sdk.APIError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
        # answered with 200, and what it said is no answer: it may have been charged
        text = scrub(f"{type(error).__name__}: {error}", key)[:LONGEST_MESSAGE]
        raise ServiceError(f"the answer is not of the expected form ({text})", "lost", passing=True) from None


def _of_status(error: Any, key: str) -> ServiceError:
    status = error.status_code
    message = scrub(f"{status} {_message(error)}", key)[:LONGEST_MESSAGE]
    passing = status in OVERLOADED or status in MAYBE_CHARGED or status >= 500
    return ServiceError(
        message + _advice(status),
        "lost" if status in MAYBE_CHARGED else "refused",
        status=status,
        code=str(_inner(error.body).get("code") or ""),
        passing=passing,
        overloaded=status in OVERLOADED,
        retry_after_s=retry_after_s(error.response.headers),
    )


def _of_connection(error: Any, key: str) -> ServiceError:
    """Whether a request left this machine before its connection failed decides whether it may have been charged."""
    cause = error.__cause__
    name = type(cause).__name__ if cause is not None else type(error).__name__
    never_left = name in ("ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "ProxyError")
    reason = scrub(str(cause or error), key)[:LONGEST_MESSAGE] or "no connection"
    return ServiceError(
        f"{name}: {reason}", "unsent" if never_left else "lost", passing=True, overloaded=name == "ConnectError"
    )


def _message(error: Any) -> str:
    """What the service says, from the body of its error."""
    return str(_inner(error.body).get("message") or "") or " ".join(str(error).split())


def _inner(body: object) -> Mapping[str, Any]:
    """The description of an error; both services put it under `error`, and one SDK takes it out of there."""
    inner = body.get("error", body) if isinstance(body, Mapping) else {}
    return inner if isinstance(inner, Mapping) else {}


def _advice(status: int) -> str:
    if status == 401:
        return "; is the key in judge.api_key_env the right one?"
    if status == 404:
        return "; are judge.model and judge.base_url right?"
    return ""


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """How long a service asks to wait, seconds: `retry-after-ms`, or `retry-after` as seconds or as a date."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers.get(name, "")) * unit)
        except ValueError:
            pass
    date = email.utils.parsedate_tz(headers.get("retry-after", ""))
    return None if date is None else max(0.0, email.utils.mktime_tz(date) - time.time())
