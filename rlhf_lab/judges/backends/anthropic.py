"""Anthropic's Messages API, by its own SDK."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rlhf_lab.core.errors import OPTIONAL, MissingDependency
from rlhf_lab.judges.address import url_of
from rlhf_lab.judges.backends.http_errors import REPLAYED, call
from rlhf_lab.judges.backends.settings import Anthropic
from rlhf_lab.judges.caller import Caller
from rlhf_lab.judges.client import Client
from rlhf_lab.judges.keys import NO_KEY, read_key, scrub
from rlhf_lab.judges.requests import Request, Stop, Usage
from rlhf_lab.judges.service import CLOCK_SKEW_S, Answer, BatchItem, BatchStatus, Candidate, ServiceError

STOPS: dict[str, Stop] = {
    "end_turn": "end",
    "stop_sequence": "end",
    "refusal": "refused",
    "max_tokens": "truncated",
    "model_context_window_exceeded": "truncated",
    "pause_turn": "truncated",
}
BLOCKED = "content filtering policy"
"""Part of the message of a 400 that is a refusal: what was asked or answered is filtered."""


class AnthropicBackend:
    def __init__(self, settings: Anthropic, *, sends: bool = True):
        try:
            import anthropic
        except ImportError:
            raise MissingDependency(*OPTIONAL["anthropic"]) from None
        self.settings, self.key, self.sdk = settings, read_key(settings) if sends else NO_KEY, anthropic
        self.client = anthropic.Anthropic(
            api_key=self.key,
            base_url=url_of(settings),
            max_retries=0,  # repeated in client.py, where every attempt is in the ledger
            timeout=settings.request_timeout_s,
            # a redirect would carry the key to another host
            http_client=anthropic.DefaultHttpxClient(follow_redirects=False, timeout=settings.request_timeout_s),
        )

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"kind": "anthropic", **self.settings.identity()}

    def body(self, request: Request) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.settings.model,
            "max_tokens": request.max_tokens,
            "messages": [{"role": message["role"], "content": message["content"]} for message in request.messages],
        }
        if request.system:
            # instructions are shared by many requests; a prompt too short for the cache is priced as ever
            body["system"] = [{"type": "text", "text": request.system, "cache_control": {"type": "ephemeral"}}]
        if request.schema is not None:
            body["output_config"] = {"format": {"type": "json_schema", "schema": dict(request.schema)}}
        return body

    def send(self, request: Request, idempotency_key: str) -> Answer:
        def create() -> Answer:
            raw = self.client.messages.with_raw_response.create(
                **self.body(request), extra_headers={"Idempotency-Key": idempotency_key}
            )
            return _answer(raw.parse(), repeated=raw.headers.get(REPLAYED) == "true")

        try:
            return call(self.sdk, self.key, create)
        except ServiceError as error:
            if error.status == 400 and BLOCKED in error.message:
                return Answer(error.message, "refused", Usage(), self.settings.model)
            raise

    # --- batches

    def create_batch(self, name: str, items: Sequence[BatchItem]) -> str:
        requests: Any = [{"custom_id": item.name, "params": self.body(item.request)} for item in items]

        def create() -> str:
            headers = {"Idempotency-Key": name}
            return str(self.client.messages.batches.create(requests=requests, extra_headers=headers).id)

        return call(self.sdk, self.key, create)

    def find_batches(self, name: str, created: float, items: int) -> list[Candidate]:
        """The service keeps no name of a batch: candidates are of the same time and size."""

        def look() -> list[Candidate]:
            found = []
            for batch in self.client.messages.batches.list(limit=100):  # the newest first, page by page
                age = _seconds(batch.created_at) - created
                if age < -CLOCK_SKEW_S:
                    break
                counts = batch.request_counts
                total = counts.processing + counts.succeeded + counts.errored + counts.canceled + counts.expired
                if age <= CLOCK_SKEW_S + self.settings.request_timeout_s and total == items:
                    found.append(Candidate(batch.id, certain=False))
            return found

        return call(self.sdk, self.key, look)

    def batch_status(self, remote: str) -> BatchStatus:
        def look() -> BatchStatus:
            batch = self.client.messages.batches.retrieve(remote)
            counts = batch.request_counts
            done = counts.succeeded + counts.errored + counts.canceled + counts.expired
            return BatchStatus(batch.processing_status == "ended", done)

        return call(self.sdk, self.key, look)

    def batch_results(self, remote: str) -> Iterator[tuple[str, Answer | ServiceError]]:
        results = iter(call(self.sdk, self.key, self.client.messages.batches.results, remote))
        while (item := call(self.sdk, self.key, next, results, None)) is not None:
            yield call(self.sdk, self.key, self._named_result, item)

    def _named_result(self, item: Any) -> tuple[str, Answer | ServiceError]:
        return str(item.custom_id), self._result(item.result)

    def _result(self, result: Any) -> Answer | ServiceError:
        if result.type == "succeeded":
            return _answer(result.message)
        if result.type == "errored":
            error = result.error.error
            message = scrub(str(error.message), self.key)
            if error.type == "invalid_request_error" and BLOCKED in message:
                return Answer(message, "refused", Usage(), self.settings.model)
            return ServiceError(message, "refused", passing=error.type != "invalid_request_error")
        return ServiceError(str(result.type), "refused", passing=True)  # expired or canceled: not worked on


def _answer(message: Any, *, repeated: bool = False) -> Answer:
    """Raises AttributeError or TypeError for what is no message; the SDK does not check what it reads."""
    text = "".join(block.text for block in message.content if block.type == "text")
    stop = STOPS.get(message.stop_reason, "end")
    if stop == "refused" and not text and message.stop_details is not None:
        text = message.stop_details.explanation or message.stop_details.category or ""
    counted = message.usage
    usage = Usage(
        input_tokens=int(counted.input_tokens),
        cache_write_tokens=int(counted.cache_creation_input_tokens or 0),
        cache_read_tokens=int(counted.cache_read_input_tokens or 0),
        output_tokens=int(counted.output_tokens),
    )
    return Answer(text, stop, usage, str(message.model), repeated)


def _seconds(moment: datetime | str) -> float:
    return (datetime.fromisoformat(moment) if isinstance(moment, str) else moment).timestamp()


def build(settings: Anthropic, caller: Caller) -> Client:
    return Client(AnthropicBackend(settings, sends=not caller.only_counts), settings, caller)
