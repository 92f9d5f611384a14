"""Backend for services with OpenAI's chat-completions API, through OpenAI's SDK."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rlhf_lab.core.files import parse_json
from rlhf_lab.core.http_retry import is_passing
from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import function_call, read_arguments
from rlhf_lab.packs.judging.judges.access import scrub, url_of
from rlhf_lab.packs.judging.judges.backends.sdk import SdkBackend
from rlhf_lab.packs.judging.judges.backends.settings import OpenAICompatible
from rlhf_lab.packs.judging.judges.client import JudgeClient
from rlhf_lab.packs.judging.judges.context import JudgeContext
from rlhf_lab.packs.judging.judges.requests import CompletionRequest, Stop, Usage, with_call_ids
from rlhf_lab.packs.judging.judges.service import (
    CLOCK_SKEW_S,
    BatchStatus,
    ServiceAnswer,
    ServiceError,
)

ENDED = ("completed", "expired", "cancelled", "failed")
"""Statuses of a batch that has finished."""
FILTERED = ("content_filter", "content_policy_violation", "ResponsibleAIPolicyViolation")
"""Error codes that, with status 400, mean a refusal."""


class OpenAIBackend(SdkBackend):
    kind = "openai_compatible"
    package = "openai"
    client_class = "OpenAI"
    settings: OpenAICompatible

    def body(self, request: CompletionRequest) -> dict[str, Any]:
        system = [{"role": "system", "content": request.system}] if request.system else []
        messages = [_message(message) for message in with_call_ids(request.messages)]
        # OpenAI's newer models reject the old name of the limit, and self-hosted servers may not know the new one
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

    def _create(self, **body: Any) -> Any:
        return self.client.chat.completions.with_raw_response.create(**body)

    def _answer(self, completion: Any, *, repeated: bool = False) -> ServiceAnswer:
        """Convert a completion of the SDK, which does not check it.

        Raises AttributeError, LookupError or TypeError for a malformed one.
        """
        choice = completion.choices[0]
        message = choice.message
        finish = choice.finish_reason
        refusal = getattr(message, "refusal", None)
        stop: Stop = "end"
        if refusal or finish == "content_filter":
            stop = "refused"
        elif finish == "length":
            stop = "truncated"
        text = str(refusal or message.content or "")
        called = getattr(message, "tool_calls", None) or ()
        # calls of other kinds, such as custom tools, have no function; no request offers them
        calls = tuple(_call(call) for call in called if getattr(call, "function", None) is not None)
        return ServiceAnswer(text, stop, _usage(completion.usage), str(completion.model), repeated, calls)

    def _is_filtered(self, error: ServiceError) -> bool:
        return error.code in FILTERED

    # --- batches

    def create_batch(self, name: str, items: Mapping[str, CompletionRequest]) -> str:
        rows = []
        for item, request in items.items():
            line = {"custom_id": item, "method": "POST", "url": "/v1/chat/completions", "body": self.body(request)}
            rows.append(json.dumps(line, ensure_ascii=False) + "\n")
        content = "".join(rows).encode()

        def create() -> str:
            file = self.batch_client.files.create(file=(f"{name}.jsonl", content), purpose="batch")
            batch = self.client.batches.create(
                input_file_id=file.id,
                endpoint="/v1/chat/completions",
                completion_window="24h",
                metadata={"rlhf_lab": name},  # by which `find_batches` recognises it after an interruption
                extra_headers={"Idempotency-Key": name},
            )
            return str(batch.id)

        return self._call(create)

    def find_batches(self, name: str, created: float, items: int) -> dict[str, bool]:
        """Return the batch with this name, which the service stores in the batch's metadata."""

        def poll() -> dict[str, bool]:
            found = {}
            for batch in self.client.batches.list(limit=100):  # sorted newest first, fetched page by page
                if batch.created_at < created - CLOCK_SKEW_S:
                    break
                if (batch.metadata or {}).get("rlhf_lab") == name:
                    found[batch.id] = True
            return found

        return self._call(poll)

    def batch_status(self, remote: str) -> BatchStatus:
        def poll() -> BatchStatus:
            batch = self.client.batches.retrieve(remote)
            counts = batch.request_counts  # None before the service has read the file
            done = counts.completed + counts.failed if counts else 0
            errors = (batch.errors.data if batch.errors else None) or []
            reasons = "; ".join(str(error.message) for error in errors) or "no reason given"
            failed = scrub(reasons, self.key) if batch.status == "failed" else ""
            return BatchStatus(batch.status in ENDED, done, failed)

        return self._call(poll)

    def batch_results(self, remote: str) -> Iterator[tuple[str, ServiceAnswer | ServiceError]]:
        """Yield the items of the results file, then of the errors file. An item in neither was not processed."""
        batch = self._call(self.client.batches.retrieve, remote)
        for file in (batch.output_file_id, batch.error_file_id):
            if not file:
                continue
            text = self._call(lambda file: str(self.batch_client.files.content(file).text), file)
            for line in text.split("\n"):  # not splitlines: a text may contain other line separators
                if line.strip():
                    yield self._call(self._result, line)

    def _result(self, text: str) -> tuple[str, ServiceAnswer | ServiceError]:
        line = parse_json(text)
        name = str(line["custom_id"])
        response = line.get("response")
        error = line.get("error")
        if response and response["status_code"] == 200:
            completion = self.sdk.types.chat.ChatCompletion.construct(**response["body"])
            return name, self._answer(completion)
        status = response["status_code"] if response else 0
        error_body = error or (response["body"].get("error") if response else None) or {}
        message = scrub(str(error_body.get("message") or error_body.get("code") or "no result"), self.key)
        if error_body.get("code") in FILTERED:
            return name, self._refusal(message)
        # an item without a status was not processed
        return name, ServiceError(message, "refused", status=status, passing=status == 0 or is_passing(status))


def _message(message: Message) -> dict[str, Any]:
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
    """Return a tool call in the form of messages. Some servers send arguments as an object, not as JSON text."""
    arguments = call.function.arguments
    if not isinstance(arguments, dict):
        arguments = read_arguments(str(arguments or ""))
    return function_call(str(call.function.name), arguments, id=str(call.id or ""))


def _usage(counted: Any) -> Usage | None:
    """Return the usage, or None if a server counts no tokens or a negative number of them."""
    if counted is None or counted.prompt_tokens is None:
        return None
    details = getattr(counted, "prompt_tokens_details", None)
    if int(counted.prompt_tokens) < 0:
        return None
    read = int(getattr(details, "cached_tokens", None) or 0)
    written = int(getattr(details, "cache_write_tokens", None) or 0)
    # the service includes cached tokens in prompt_tokens
    return Usage(
        input_tokens=max(0, int(counted.prompt_tokens) - read - written),
        cache_write_tokens=written,
        cache_read_tokens=read,
        output_tokens=int(counted.completion_tokens or 0),
    )


def build(settings: OpenAICompatible, caller: JudgeContext) -> JudgeClient:
    return JudgeClient(OpenAIBackend(settings, sends=not caller.only_counts), settings, caller)
