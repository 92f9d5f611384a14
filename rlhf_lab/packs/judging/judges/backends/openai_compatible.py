"""Services that answer like OpenAI's chat completions, by OpenAI's SDK."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlhf_lab.core.errors import OPTIONAL, MissingDependency
from rlhf_lab.core.files import parse_json
from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import function_call, read_arguments
from rlhf_lab.packs.judging.judges.address import url_of
from rlhf_lab.packs.judging.judges.backends.http_errors import REPLAYED, call
from rlhf_lab.packs.judging.judges.backends.settings import OpenAICompatible
from rlhf_lab.packs.judging.judges.call_ids import with_call_ids
from rlhf_lab.packs.judging.judges.caller import Caller
from rlhf_lab.packs.judging.judges.client import Client
from rlhf_lab.packs.judging.judges.keys import NO_KEY, read_key, scrub
from rlhf_lab.packs.judging.judges.requests import Request, Stop, Usage
from rlhf_lab.packs.judging.judges.service import CLOCK_SKEW_S, Answer, BatchItem, BatchStatus, Candidate, ServiceError

ENDED = ("completed", "expired", "cancelled", "failed")
FILTERED = ("content_filter", "content_policy_violation", "ResponsibleAIPolicyViolation")
"""Codes of a 400 that is a refusal."""


class OpenAIBackend:
    def __init__(self, settings: OpenAICompatible, *, sends: bool = True):
        try:
            import openai
        except ImportError:
            raise MissingDependency(*OPTIONAL["openai"]) from None
        self.settings, self.key, self.sdk = settings, read_key(settings) if sends else NO_KEY, openai
        self.client = openai.OpenAI(
            api_key=self.key,
            base_url=url_of(settings),
            max_retries=0,  # repeated in client.py, where every attempt is in the ledger
            timeout=settings.request_timeout_s,
            # a redirect would carry the key to another host
            http_client=openai.DefaultHttpxClient(follow_redirects=False, timeout=settings.request_timeout_s),
        )

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"kind": "openai_compatible", **self.settings.identity()}

    def body(self, request: Request) -> dict[str, Any]:
        system = [{"role": "system", "content": request.system}] if request.system else []
        messages = [_message(message) for message in with_call_ids(request.messages)]
        # OpenAI's newer models refuse the old name of the limit, and servers of one's own may not know the new one
        is_openai = url_of(self.settings) == self.settings.default_url
        limit = "max_completion_tokens" if is_openai else "max_tokens"
        body: dict[str, Any] = {
            "model": self.settings.model,
            "messages": [*system, *messages],
            limit: request.max_tokens,
        }
        if request.tools:
            body["tools"] = [dict(tool) for tool in request.tools]
        if request.stop:
            body["stop"] = list(request.stop)
        if self.settings.temperature is not None:
            body["temperature"] = self.settings.temperature
        if request.schema is not None and self.settings.structured == "json_schema":
            schema = {"name": "answer", "schema": dict(request.schema), "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif request.schema is not None and self.settings.structured == "json_object":
            body["response_format"] = {"type": "json_object"}
        return body

    def send(self, request: Request, idempotency_key: str) -> Answer:
        def create() -> Answer:
            raw = self.client.chat.completions.with_raw_response.create(
                **self.body(request), extra_headers={"Idempotency-Key": idempotency_key}
            )
            return _answer(raw.parse(), repeated=raw.headers.get(REPLAYED) == "true")

        try:
            return call(self.sdk, self.key, create)
        except ServiceError as error:
            if error.status == 400 and error.code in FILTERED:
                return Answer(error.message, "refused", Usage(), self.settings.model)
            raise

    # --- batches

    def create_batch(self, name: str, items: Sequence[BatchItem]) -> str:
        lines = [
            {"custom_id": item.name, "method": "POST", "url": "/v1/chat/completions", "body": self.body(item.request)}
            for item in items
        ]
        content = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()

        def create() -> str:
            file = self.client.files.create(file=(f"{name}.jsonl", content), purpose="batch")
            batch = self.client.batches.create(
                input_file_id=file.id,
                endpoint="/v1/chat/completions",
                completion_window="24h",
                metadata={"rlhf_lab": name},
                extra_headers={"Idempotency-Key": name},
            )
            return str(batch.id)

        return call(self.sdk, self.key, create)

    def find_batches(self, name: str, created: float, items: int) -> list[Candidate]:
        """The service keeps the name of a batch in its metadata."""

        def look() -> list[Candidate]:
            found = []
            for batch in self.client.batches.list(limit=100):  # the newest first, page by page
                if batch.created_at < created - CLOCK_SKEW_S:
                    break
                if (batch.metadata or {}).get("rlhf_lab") == name:
                    found.append(Candidate(batch.id, certain=True))
            return found

        return call(self.sdk, self.key, look)

    def batch_status(self, remote: str) -> BatchStatus:
        def look() -> BatchStatus:
            batch = self.client.batches.retrieve(remote)
            counts = batch.request_counts
            done = counts.completed + counts.failed if counts else 0
            errors = (batch.errors.data if batch.errors else None) or []
            reasons = "; ".join(str(error.message) for error in errors) or "no reason given"
            failed = scrub(reasons, self.key) if batch.status == "failed" else ""
            return BatchStatus(batch.status in ENDED, done, failed)

        return call(self.sdk, self.key, look)

    def batch_results(self, remote: str) -> Iterator[tuple[str, Answer | ServiceError]]:
        """Results lie in one file, errors in another; an item in neither was not worked on."""
        batch = call(self.sdk, self.key, self.client.batches.retrieve, remote)
        for file in (batch.output_file_id, batch.error_file_id):
            if not file:
                continue
            text = call(self.sdk, self.key, self._content, file)
            for line in text.split("\n"):  # a text may hold other ends of line
                if not line.strip():
                    continue
                yield call(self.sdk, self.key, self._result, line)

    def _content(self, file: str) -> str:
        return str(self.client.files.content(file).text)

    def _result(self, text: str) -> tuple[str, Answer | ServiceError]:
        line = parse_json(text)
        name, response, error = str(line["custom_id"]), line.get("response"), line.get("error")
        if response and response["status_code"] == 200:
            completion = self.sdk.types.chat.ChatCompletion.construct(**response["body"])
            return name, _answer(completion)
        status = response["status_code"] if response else 0
        said = error or (response["body"].get("error") if response else None) or {}
        message = scrub(str(said.get("message") or said.get("code") or "no result"), self.key)
        if said.get("code") in FILTERED:
            return name, Answer(message, "refused", Usage(), self.settings.model)
        passing = not 400 <= status < 500 or status in (408, 409, 429)
        return name, ServiceError(message, "refused", status=status, passing=passing)


def _message(message: Message) -> dict[str, Any]:
    """A message as the service takes it: arguments of calls are JSON in a text."""
    sent: dict[str, Any] = {"role": message["role"], "content": message["content"]}
    if message["role"] == "tool":
        sent["tool_call_id"] = message["tool_call_id"]
    if calls := message.get("tool_calls"):
        sent["tool_calls"] = [_sent_call(call) for call in calls]
    return sent


def _sent_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return {"id": call["id"], "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def _call(call: Any) -> dict[str, Any]:
    """A call as messages have it. Some servers give the arguments as an object and not as a text of JSON."""
    arguments = call.function.arguments
    if not isinstance(arguments, dict):
        arguments = read_arguments(str(arguments or ""))
    return function_call(str(call.function.name), arguments, id=str(call.id or ""))


def _answer(completion: Any, *, repeated: bool = False) -> Answer:
    """Raises AttributeError, LookupError or TypeError for what is no completion; the SDK does not check it."""
    choice = completion.choices[0]
    message, finish = choice.message, choice.finish_reason
    refusal = getattr(message, "refusal", None)
    stop: Stop = "refused" if refusal or finish == "content_filter" else "truncated" if finish == "length" else "end"
    text = str(refusal or message.content or "")
    called = getattr(message, "tool_calls", None) or ()
    calls = tuple(_call(call) for call in called if getattr(call, "function", None) is not None)
    return Answer(text, stop, _usage(completion.usage), str(completion.model), repeated, calls)


def _usage(counted: Any) -> Usage | None:
    """Cached tokens are among the prompt's here. None where a server counts nothing, or less."""
    if counted is None or counted.prompt_tokens is None:
        return None
    details = getattr(counted, "prompt_tokens_details", None)
    if int(counted.prompt_tokens) < 0:
        return None
    read = int(getattr(details, "cached_tokens", None) or 0)
    written = int(getattr(details, "cache_write_tokens", None) or 0)
    return Usage(
        input_tokens=max(0, int(counted.prompt_tokens) - read - written),
        cache_write_tokens=written,
        cache_read_tokens=read,
        output_tokens=int(counted.completion_tokens or 0),
    )


def build(settings: OpenAICompatible, caller: Caller) -> Client:
    return Client(OpenAIBackend(settings, sends=not caller.only_counts), settings, caller)
