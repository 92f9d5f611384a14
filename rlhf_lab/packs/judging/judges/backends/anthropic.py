"""Backend for Anthropic's Messages API, through Anthropic's SDK."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import MALFORMED, function_call
from rlhf_lab.packs.judging.judges.access import scrub
from rlhf_lab.packs.judging.judges.backends.sdk import SdkBackend
from rlhf_lab.packs.judging.judges.backends.settings import Anthropic
from rlhf_lab.packs.judging.judges.client import JudgeClient
from rlhf_lab.packs.judging.judges.context import JudgeContext
from rlhf_lab.packs.judging.judges.requests import CompletionRequest, Stop, Usage, with_call_ids
from rlhf_lab.packs.judging.judges.service import (
    CLOCK_SKEW_S,
    BatchStatus,
    ServiceAnswer,
    ServiceError,
)

STOPS: dict[str, Stop] = {
    "end_turn": "end",
    "stop_sequence": "end",
    "tool_use": "end",
    "refusal": "refused",
    "max_tokens": "truncated",
    "model_context_window_exceeded": "truncated",
    "pause_turn": "truncated",
}
THOUGHTS = ("thinking", "redacted_thinking")
"""Types of blocks that have to be sent back unchanged, together with the tool calls that follow them."""
CACHED = {"type": "ephemeral"}
"""Marks the end of the prefix that the service stores in its prompt cache."""
BLOCKED = "content filtering policy"
"""Part of the message of an error 400 that means a refusal: the prompt or the answer was filtered."""


class AnthropicBackend(SdkBackend):
    kind = "anthropic"
    package = "anthropic"
    client_class = "Anthropic"

    def body(self, request: CompletionRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.settings.model,
            "max_tokens": request.max_tokens,
            "messages": _messages(request.messages),
        }
        if request.tools:
            body["tools"] = [_tool(tool) for tool in request.tools]
        if request.stop:
            body["stop_sequences"] = list(request.stop)
        if request.system:
            # many requests share their instructions; a prompt too short for the cache costs the usual price
            body["system"] = [{"type": "text", "text": request.system, "cache_control": CACHED}]
        elif request.tools:  # tools precede the instructions, so the instructions' mark would include them
            body["tools"][-1]["cache_control"] = CACHED
        if request.schema is not None:
            body["output_config"] = {"format": {"type": "json_schema", "schema": dict(request.schema)}}
        return body

    def _create(self, **body: Any) -> Any:
        return self.client.messages.with_raw_response.create(**body)

    def _answer(self, completion: Any, *, repeated: bool = False) -> ServiceAnswer:
        """Convert a message of the SDK, which does not check it.

        Raises AttributeError or TypeError for a malformed one.
        """
        text = "".join(block.text for block in completion.content if block.type == "text")
        stop = STOPS.get(completion.stop_reason, "end")
        if stop == "refused" and not text and completion.stop_details is not None:
            text = completion.stop_details.explanation or completion.stop_details.category or ""
        counted = completion.usage
        usage = Usage(
            input_tokens=int(counted.input_tokens),
            cache_write_tokens=int(counted.cache_creation_input_tokens or 0),
            cache_read_tokens=int(counted.cache_read_input_tokens or 0),
            output_tokens=int(counted.output_tokens),
        )
        calls = tuple(_call(block) for block in completion.content if block.type == "tool_use")
        has_thoughts = any(block.type in THOUGHTS for block in completion.content)
        blocks: tuple[dict[str, Any], ...] = ()
        # the thinking blocks matter only if the conversation continues with the results of calls
        if calls and has_thoughts:
            blocks = tuple(block.model_dump(mode="json", exclude_unset=True) for block in completion.content)
        return ServiceAnswer(text, stop, usage, str(completion.model), repeated, calls, blocks)

    def _is_filtered(self, error: ServiceError) -> bool:
        return BLOCKED in error.message

    # --- batches

    def create_batch(self, name: str, items: Mapping[str, CompletionRequest]) -> str:
        requests: Any = [{"custom_id": item, "params": self.body(request)} for item, request in items.items()]

        def create() -> str:
            headers = {"Idempotency-Key": name}
            return str(self.batch_client.messages.batches.create(requests=requests, extra_headers=headers).id)

        return self._call(create)

    def find_batches(self, name: str, created: float, items: int) -> dict[str, bool]:
        """Return the batches that were created at about this time with this number of items. The service does not store
        the name of a batch.
        """

        def poll() -> dict[str, bool]:
            found = {}
            for batch in self.client.messages.batches.list(limit=100):  # sorted newest first, fetched page by page
                age = _seconds(batch.created_at) - created
                if age < -CLOCK_SKEW_S:
                    break
                total = batch.request_counts.processing + _done(batch)
                if age <= CLOCK_SKEW_S + self.settings.request_timeout_s and total == items:
                    found[batch.id] = False
            return found

        return self._call(poll)

    def batch_status(self, remote: str) -> BatchStatus:
        def poll() -> BatchStatus:
            batch = self.client.messages.batches.retrieve(remote)
            return BatchStatus(batch.processing_status == "ended", _done(batch))

        return self._call(poll)

    def batch_results(self, remote: str) -> Iterator[tuple[str, ServiceAnswer | ServiceError]]:
        results = iter(self._call(self.batch_client.messages.batches.results, remote))
        while (item := self._call(next, results, None)) is not None:
            yield self._call(lambda item: (str(item.custom_id), self._result(item.result)), item)

    def _result(self, result: Any) -> ServiceAnswer | ServiceError:
        if result.type == "succeeded":
            return self._answer(result.message)
        if result.type == "errored":
            error = result.error.error
            message = scrub(str(error.message), self.key)
            if error.type == "invalid_request_error" and BLOCKED in message:
                return self._refusal(message)
            return ServiceError(message, "refused", passing=error.type != "invalid_request_error")
        return ServiceError(str(result.type), "refused", passing=True)  # expired or canceled: not processed, so free


def _tool(definition: Mapping[str, Any]) -> dict[str, Any]:
    function = definition["function"]
    described = {name: function[name] for name in ("name", "description")}
    return {**described, "input_schema": dict(function["parameters"])}


def _messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages in the service's form: calls and results are blocks, and results belong to user messages."""
    sent: list[dict[str, Any]] = []
    # content of the last message if it is a user message with tool results, else None
    result_blocks: list[dict[str, Any]] | None = None
    for message in with_call_ids(messages):
        role = message["role"]
        content = message["content"]
        if role == "tool":
            if result_blocks is None:
                result_blocks = []
                sent.append({"role": "user", "content": result_blocks})
            block = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": content}
            result_blocks.append(block)
            continue
        if role == "user" and result_blocks is not None:
            # text that the user adds after tool results goes into the same message, behind the results
            result_blocks += _text_blocks(content)
            continue
        result_blocks = None
        calls = message.get("tool_calls")
        if "blocks" in message:
            sent.append({"role": role, "content": message["blocks"]})
        elif calls:
            blocks = [*_text_blocks(content), *map(_call_block, calls)]
            sent.append({"role": role, "content": blocks})
        elif content.strip() or role != "assistant":
            sent.append({"role": role, "content": content})
        # An empty assistant message is left out: the service rejects text that is empty or only white space.
    return sent


def _text_blocks(text: str) -> list[dict[str, Any]]:
    """Return the text as a block, or no block for white space, which the service rejects."""
    return [{"type": "text", "text": text}] if text.strip() else []


def _call_block(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {"type": "tool_use", "id": call["id"], "name": function["name"], "input": dict(function["arguments"])}


def _call(block: Any) -> dict[str, Any]:
    """Return a tool call in the form of messages. Arguments may be of any type, because the SDK does not check them."""
    arguments = block.input if isinstance(block.input, dict) else {MALFORMED: str(block.input)}
    return function_call(str(block.name), arguments, id=str(block.id))


def _done(batch: Any) -> int:
    counts = batch.request_counts
    return int(counts.succeeded + counts.errored + counts.canceled + counts.expired)


def _seconds(moment: datetime | str) -> float:
    return (datetime.fromisoformat(moment) if isinstance(moment, str) else moment).timestamp()


def build(settings: Anthropic, caller: JudgeContext) -> JudgeClient:
    return JudgeClient(AnthropicBackend(settings, sends=not caller.only_counts), settings, caller)
