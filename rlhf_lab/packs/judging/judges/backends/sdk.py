"""Common part of the backends that use the SDK of a service: clients, one answer, and conversion of errors.

Both SDKs have the same error classes.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from rlhf_lab.core.errors import OPTIONAL, MissingDependency
from rlhf_lab.core.http_client import retry_after_s
from rlhf_lab.core.http_retry import is_passing
from rlhf_lab.packs.judging.judges.access import NO_KEY, read_key, scrub, url_of
from rlhf_lab.packs.judging.judges.backends.settings import Service
from rlhf_lab.packs.judging.judges.requests import CompletionRequest
from rlhf_lab.packs.judging.judges.service import (
    BatchStatus,
    ServiceAnswer,
    ServiceError,
)

OVERLOADED = (429, 503, 529)
"""HTTP statuses of a service that is too busy for any request; it did no work, so nothing is charged."""
MAYBE_CHARGED = (408, 409, 502, 504, 524)
"""Statuses that may come from a proxy that gave up waiting, or mean that the same request is in flight. The model may
have answered, so the attempt counts as lost."""
REPLAYED = "idempotent-replayed"
"""Response header of a service that answers a repeated idempotency key with its first answer."""
UNUSABLE = "UnusableResponse"
"""Name of the transport's error for a response that would be no better at the next attempt."""
LONGEST_MESSAGE = 300
"""Maximum number of characters of an error message."""
Result = TypeVar("Result")


def call(sdk: Any, key: str, do: Callable[..., Result], *args: Any) -> Result:
    """Call a function of the module `sdk`. Raises ServiceError, without the key, for every error of the SDK."""
    # `from None` everywhere: the SDK's exception holds the request with the key in its headers
    try:
        return do(*args)
    except sdk.APIStatusError as error:
        raise _of_status(error, key) from None
    except sdk.APIConnectionError as error:
        raise _of_connection(error, key) from None
    except (sdk.APIError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
        # the service sent status 200 but no readable answer, so the request may have been charged
        text = scrub(f"{type(error).__name__}: {error}", key)[:LONGEST_MESSAGE]
        raise ServiceError(f"the answer is not of the expected form ({text})", "lost", passing=True) from None


def _of_status(error: Any, key: str) -> ServiceError:
    status = error.status_code
    message = scrub(f"{status} {_message(error)}", key)[:LONGEST_MESSAGE]
    return ServiceError(
        message + _hint(status),
        "lost" if status in MAYBE_CHARGED else "refused",
        status=status,
        code=str(_inner(error.body).get("code") or ""),
        passing=is_passing(status),
        overloaded=status in OVERLOADED,
        retry_after_s=retry_after_s(error.response.headers),
    )


def _of_connection(error: Any, key: str) -> ServiceError:
    """Return the error of a failed connection. A request that never left this machine cannot have been charged."""
    cause = error.__cause__
    name = type(cause).__name__ if cause is not None else type(error).__name__
    never_left = name in ("ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "ProxyError")
    reason = scrub(str(cause or error), key)[:LONGEST_MESSAGE] or "no connection"
    return ServiceError(
        f"{name}: {reason}",
        "unsent" if never_left else "lost",
        passing=name != UNUSABLE,
        overloaded=name == "ConnectError",
    )


def _message(error: Any) -> str:
    return str(_inner(error.body).get("message") or "") or " ".join(str(error).split())


def _inner(body: object) -> Mapping[str, Any]:
    """Return the description of an error. Both services put it under `error`; one SDK has extracted it already."""
    inner = body.get("error", body) if isinstance(body, Mapping) else {}
    return inner if isinstance(inner, Mapping) else {}


def _hint(status: int) -> str:
    if status == 401:
        return "; is the key in judge.api_key_env the right one?"
    if status == 404:
        return "; are judge.model and judge.base_url right?"
    return ""


class SdkBackend(ABC):
    """One model of one service, through one SDK. Subclasses convert requests and answers.

    All methods raise ServiceError.

    Class attributes:
        kind: kind of the settings.
        package: package of the SDK.
        client_class: class of its client.

    Attributes:
        client: client for single answers and short requests.
        batch_client: client for sending a batch and for reading its results.
    """

    kind: ClassVar[str]
    package: ClassVar[str]
    client_class: ClassVar[str]

    def __init__(self, settings: Service, *, sends: bool = True):
        try:
            self.sdk = importlib.import_module(self.package)
            # this module imports packages that are installed with the SDK only
            from rlhf_lab.packs.judging.judges.backends.transport import answer_limits, batch_limits, http_client
        except ImportError:
            raise MissingDependency(*OPTIONAL[self.package]) from None
        self.settings = settings
        self.key = read_key(settings) if sends else NO_KEY
        self.client = getattr(self.sdk, self.client_class)(
            api_key=self.key,
            base_url=url_of(settings),
            max_retries=0,  # only client.py retries, so that every attempt is in the ledger
            timeout=settings.request_timeout_s,
            http_client=http_client(self.sdk, settings, answer_limits(settings)),
        )
        limits = batch_limits(settings)
        files_client = http_client(self.sdk, settings, limits)
        self.batch_client = self.client.with_options(timeout=limits.seconds, http_client=files_client)

    @property
    def identity(self) -> Mapping[str, Any]:
        """JSON values that identify the backend: everything that determines the answers except the requests."""
        return {"kind": self.kind, **self.settings.identity()}

    def send(self, request: CompletionRequest, idempotency_key: str) -> ServiceAnswer:
        """Make one attempt."""

        def create() -> ServiceAnswer:
            raw = self._create(**self.body(request), extra_headers={"Idempotency-Key": idempotency_key})
            return self._answer(raw.parse(), repeated=raw.headers.get(REPLAYED) == "true")

        try:
            return self._call(create)
        except ServiceError as error:
            # a filter of the service blocked the prompt or the answer
            if error.status == 400 and self._is_filtered(error):
                return self._refusal(error.message)
            raise

    def _call(self, do: Callable[..., Result], *args: Any) -> Result:
        return call(self.sdk, self.key, do, *args)

    def _refusal(self, message: str) -> ServiceAnswer:
        return ServiceAnswer(message, "refused", model=self.settings.model, charged=False)

    @abstractmethod
    def body(self, request: CompletionRequest) -> dict[str, Any]:
        """Return the body of the HTTP request as JSON values."""

    @abstractmethod
    def _create(self, **body: Any) -> Any:
        """Send a request, and return the SDK's raw response."""

    @abstractmethod
    def _answer(self, completion: Any, *, repeated: bool = False) -> ServiceAnswer:
        """Convert an answer of the SDK, which does not check it."""

    @abstractmethod
    def create_batch(self, name: str, items: Mapping[str, CompletionRequest]) -> str:
        """Send a batch of named requests. Return the service's name of it.

        The names are unique in the service's account, and have at most 64 letters, digits, - and _.
        """

    @abstractmethod
    def find_batches(self, name: str, created: float, items: int) -> dict[str, bool]:
        """Return batches created around that time that may have this name, by the service's name.

        The value is True if the service stores our name of the batch; otherwise only the names of its items can tell.
        """

    @abstractmethod
    def batch_status(self, remote: str) -> BatchStatus:
        """Return the status of a batch."""

    @abstractmethod
    def batch_results(self, remote: str) -> Iterator[tuple[str, ServiceAnswer | ServiceError]]:
        """Yield (name, result) of each item of a finished batch, in any order."""

    @abstractmethod
    def _is_filtered(self, error: ServiceError) -> bool:
        """Return True if an error with status 400 means that a filter of the service blocked prompt or answer."""
