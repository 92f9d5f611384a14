"""Anthropic's Messages API, by its own SDK."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rlhf_lab.core.errors import OPTIONAL, MissingDependency
from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import MALFORMED, function_call
from rlhf_lab.packs.judging.judges.address import url_of
from rlhf_lab.packs.judging.judges.backends.http_errors import REPLAYED, call
from rlhf_lab.packs.judging.judges.backends.settings import Anthropic
from rlhf_lab.packs.judging.judges.call_ids import with_call_ids
from rlhf_lab.packs.judging.judges.caller import Caller
from rlhf_lab.packs.judging.judges.client import Client
from rlhf_lab.packs.judging.judges.keys import NO_KEY, read_key, scrub
from rlhf_lab.packs.judging.judges.requests import Request, Stop, Usage
from rlhf_lab.packs.judging.judges.service import CLOCK_SKEW_S, Answer, BatchItem, BatchStatus, Candidate, ServiceError

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
"""Blocks that have to be sent back, as they came, with the calls that they stand in front of."""
CACHED = {"type": "ephemeral"}
"""Marks the end of what is kept in the prompt cache, from the beginning of the request on."""
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
            "messages": _messages(request.messages),
        }
        if request.tools:
            body["tools"] = [_tool(tool) for tool in request.tools]
        if request.stop:
            body["stop_sequences"] = list(request.stop)
        if request.system:
            # instructions are shared by many requests; a prompt too short for the cache is priced as ever
            body["system"] = [{"type": "text", "text": request.system, "cache_control": CACHED}]
        elif request.tools:  # they stand before the instructions, whose mark would be theirs as well
            body["tools"][-1]["cache_control"] = CACHED
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


def _tool(definition: Mapping[str, Any]) -> dict[str, Any]:
    function = definition["function"]
    return {
        "name": function["name"],
        "description": function["description"],
        "input_schema": dict(function["parameters"]),
    }


def _messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as the service takes them: calls and results are blocks, and results are said by the user."""
    sent: list[dict[str, Any]] = []
    result_blocks: list[dict[str, Any]] | None = None  # of the user's message with results, while it is the last one
    for message in with_call_ids(messages):
        role, content = message["role"], message["content"]
        if role == "tool":
            if result_blocks is None:
                result_blocks = []
                sent.append({"role": "user", "content": result_blocks})
            block = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": content}
            result_blocks.append(block)
            continue
        if role == "user" and result_blocks is not None:
            # what the user adds to results stands behind them, in the same message
            result_blocks += _text_blocks(content)
            continue
        result_blocks = None
        calls = message.get("tool_calls")
        if "blocks" in message:
            sent.append({"role": role, "content": message["blocks"]})
        elif calls:
            sent.append({"role": role, "content": [*_text_blocks(content), *map(_call_block, calls)]})
        elif content.strip() or role != "assistant":
            sent.append({"role": role, "content": content})
        # an assistant who said nothing is left out: the service takes no message that is empty or white space alone
    return sent


def _text_blocks(text: str) -> list[dict[str, Any]]:
    """The service takes no text of white space alone."""
    return [{"type": "text", "text": text}] if text.strip() else []


def _call_block(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {"type": "tool_use", "id": call["id"], "name": function["name"], "input": dict(function["arguments"])}


def _call(block: Any) -> dict[str, Any]:
    """A call as messages have it. The SDK does not check what it reads: arguments may be anything."""
    arguments = block.input if isinstance(block.input, dict) else {MALFORMED: str(block.input)}
    return function_call(str(block.name), arguments, id=str(block.id))


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
    calls = tuple(_call(block) for block in message.content if block.type == "tool_use")
    has_thoughts = any(block.type in THOUGHTS for block in message.content)
    blocks: tuple[dict[str, Any], ...] = ()
    if calls and has_thoughts:  # thoughts of an answer that calls nothing are not asked for again
        blocks = tuple(block.model_dump(mode="json", exclude_unset=True) for block in message.content)
    return Answer(text, stop, usage, str(message.model), repeated, calls, blocks)


def _seconds(moment: datetime | str) -> float:
    return (datetime.fromisoformat(moment) if isinstance(moment, str) else moment).timestamp()


def build(settings: Anthropic, caller: Caller) -> Client:
    return Client(AnthropicBackend(settings, sends=not caller.only_counts), settings, caller)
