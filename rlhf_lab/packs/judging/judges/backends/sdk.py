"""Common part of the backends that use the SDK of a service: clients, one answer, and conversion of errors."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from rlhf_lab.core.errors import OPTIONAL, MissingDependency
from rlhf_lab.packs.judging.judges.address import url_of
from rlhf_lab.packs.judging.judges.backends.http_errors import REPLAYED, Result, call
from rlhf_lab.packs.judging.judges.backends.settings import Service
from rlhf_lab.packs.judging.judges.keys import NO_KEY, read_key
from rlhf_lab.packs.judging.judges.requests import CompletionRequest
from rlhf_lab.packs.judging.judges.service import ServiceAnswer, ServiceError


class SdkBackend(ABC):
    """Backend of a service with an SDK. Subclasses convert requests and answers.

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
        return {"kind": self.kind, **self.settings.identity()}

    def send(self, request: CompletionRequest, idempotency_key: str) -> ServiceAnswer:
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
        """Call a function of the SDK. Raises ServiceError, without the key."""
        return call(self.sdk, self.key, do, *args)

    def _refusal(self, message: str) -> ServiceAnswer:
        return ServiceAnswer(message, "refused", model=self.settings.model, charged=False)

    @abstractmethod
    def body(self, request: CompletionRequest) -> dict[str, Any]:
        """Return the request in the form of the service."""

    @abstractmethod
    def _create(self, **body: Any) -> Any:
        """Send a request, and return the SDK's raw response."""

    @abstractmethod
    def _answer(self, completion: Any, *, repeated: bool = False) -> ServiceAnswer:
        """Convert an answer of the SDK, which does not check it."""

    @abstractmethod
    def _is_filtered(self, error: ServiceError) -> bool:
        """Return True if an error with status 400 means that a filter of the service blocked prompt or answer."""
