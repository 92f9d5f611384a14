"""A service that speaks Anthropic's and OpenAI's protocols on this machine: scriptable, and with a count of its own.

    with JudgeServer() as server:
        server.faults += [status(429, retry_after="0.05"), hang(0.3)]
        server.answer = lambda asked: Said('{"winner": "first"}')
        …
        assert server.billed_requests == 3

An agent is driven by a policy, a function of the conversation that both protocols are read into:

    server.answer = lambda asked: policy(asked.messages, asked.tools)
    server.answer = in_turn(Said(calls=[("search", {"query": "Oslo"})]), Said("709,000"))

Anthropic's SDK gets `server.url`, OpenAI's `server.openai_url`. Tokens are a quarter of the bytes, rounded up, so that
they can be counted by hand. Requests that the services would refuse, such as a call without its result, get a 400.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import function_call

NO_REASON = {"end": "end_turn", "refused": "refusal", "truncated": "max_tokens", "stopped": "stop_sequence"}
FINISH = {"end": "stop", "refused": "content_filter", "truncated": "length", "stopped": "stop"}


def tokens(text: str) -> int:
    return -(-len(text.encode()) // 4)


@dataclass
class Asked:
    """One request as it came.

    Attributes:
        body: of the HTTP request, or of an item of a batch.
        number: of the requests so far, from 0.
    """

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    number: int = 0

    @property
    def system(self) -> str:
        system = self.body.get("system") or [m["content"] for m in self.body["messages"] if m["role"] == "system"]
        return "".join(part["text"] if isinstance(part, dict) else part for part in system)

    @property
    def question(self) -> str:
        """The last message."""
        return str(self.body["messages"][-1]["content"])

    @property
    def is_anthropic(self) -> bool:
        return "completions" not in self.path

    @property
    def messages(self) -> list[Message]:
        """The conversation without the instructions, as `core.messages` has it."""
        read = _read_anthropic if self.is_anthropic else _read_openai
        return [message for sent in self.body["messages"] for message in read(sent)]

    @property
    def tools(self) -> list[str]:
        """Names of the tools that may be called."""
        return [tool["name"] if self.is_anthropic else tool["function"]["name"] for tool in self.body.get("tools", [])]

    @property
    def stop(self) -> list[str]:
        return list(self.body.get("stop_sequences" if self.is_anthropic else "stop") or [])

    @property
    def turn(self) -> int:
        """Return the number of turns in which the assistant has spoken."""
        return sum(message["role"] == "assistant" for message in self.messages)

    @property
    def max_tokens(self) -> int:
        return int(self.body.get("max_tokens") or self.body.get("max_completion_tokens") or 0)


@dataclass
class Said:
    """Content of an answer.

    Attributes:
        item: what becomes of it in a batch: succeeded, errored, expired or canceled.
        calls: (tool, arguments) of each call; arguments that are a text are sent as they are, well formed or not.
    """

    text: str = ""
    stop: str = "end"
    item: str = "succeeded"
    calls: Sequence[tuple[str, dict[str, Any] | str]] = ()


def in_turn(*said: Said) -> Callable[[Asked], Said]:
    """A policy that says the k-th of these when the assistant has spoken k times; at the end, the last one."""
    return lambda asked: said[min(asked.turn, len(said) - 1)]


COUNTED = 1
"""A token is reported as so many; those that are billed stay as they are."""


@dataclass
class Fault:
    """Event that a POST meets instead of an answer, or after it was charged.

    Attributes:
        status, headers, body: of the response; status 0 closes the connection without one.
        wait_s: before that.
        charged: True if the answer is generated and charged before the fault.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    wait_s: float = 0.0
    charged: bool = False


def status(code: int, message: str = "too busy", *, retry_after: str = "", **headers: str) -> Fault:
    """An error response of the service."""
    error = {"type": "error", "error": {"type": "some_error", "message": message, "code": None}}
    more = {"Retry-After": retry_after} if retry_after else {}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Fault(code, more | named, json.dumps(error).encode())


def hang(seconds: float, *, charged: bool = True) -> Fault:
    """The answer comes so late that the client has gone."""
    return Fault(wait_s=seconds, charged=charged)


def reset(*, charged: bool = True) -> Fault:
    """The connection breaks before the answer."""
    return Fault(charged=charged)


def malformed(body: bytes = b'{"id": "x", "content": [{"type') -> Fault:
    """200, and what follows is not JSON."""
    return Fault(200, body=body, charged=True)


@dataclass
class Batch:
    """One batch at the service. It ends after `looks_left` looks at it."""

    id: str
    items: list[dict[str, Any]]
    looks_left: int
    created: float
    metadata: dict[str, str] = field(default_factory=dict)
    results: list[tuple[str, Said, dict[str, Any] | None]] = field(default_factory=list)
    error: str = ""

    @property
    def finished(self) -> bool:
        return self.looks_left <= 0


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = (
        128  # more connections than this at once are refused, on a busy machine those of 32 threads too
    )


class JudgeServer:
    """The service, in threads of this process.

    Attributes:
        answer: what it says to a request.
        faults: what happens to the next POSTs, first to the next one; None is an answer.
        always: what happens to every POST, if anything; checked before `faults`.
        thinks: True if Anthropic's answers start with thoughts, which then have to be sent back with calls.
        keeps_keys: whether a repeated Idempotency-Key gets the first answer again, uncharged.
        batch_looks: number of polls of a batch before it is done.
        asked: every POST that was received.
        charged: (input, cache write, cache read, output, is of a batch) tokens of each answer.
        keys: every Authorization and x-api-key header.
        gets: path of every GET.
        models: names that it lists as its models.
    """

    def __init__(self) -> None:
        self.answer: Callable[[Asked], Said] = lambda asked: Said(f"an answer to {asked.question}")
        self.faults: list[Fault | None] = []
        self.always: Callable[[Asked], Fault | None] = lambda asked: None
        self.get_faults: list[Fault | None] = []
        self.keeps_keys = False
        self.thinks = False
        self._thoughts: dict[str, dict[str, Any]] = {}  # by the id of a call that follows them
        self.batch_looks = 1
        self.wait_s = 0.0
        self.asked: list[Asked] = []
        self.charged: list[tuple[int, int, int, int, bool]] = []
        self.keys: list[str] = []
        self.gets: list[str] = []
        self.models: list[str] = []
        self.batches: dict[str, Batch] = {}
        self.files: dict[str, bytes] = {}
        self.most_at_once = 0
        self._at_once = 0
        self._replies: dict[str, tuple[int, bytes]] = {}
        self._cached: set[tuple[str, ...]] = set()
        self._calls_made = 0
        self._lock = threading.Lock()
        self.http = _Http(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.openai_url = f"{self.url}/v1"

    def __enter__(self) -> JudgeServer:
        # looking for the end of a request a hundred times a second makes `shutdown` quick
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.http.shutdown()
        self.http.server_close()

    @property
    def billed_requests(self) -> int:
        return len(self.charged)

    def billed_usd(self, price: tuple[float, float, float, float], batch: float = 0.5) -> float:
        """Return the price on the bill, at (input, cache write, cache read, output) USD per million tokens."""
        total = 0.0
        for *counts, in_batch in self.charged:
            usd = sum(count * each for count, each in zip(counts, price, strict=True)) / 1e6
            total += usd * (batch if in_batch else 1)
        return total

    # --- answers

    def respond(self, asked: Asked, *, batch: bool = False) -> tuple[Said, dict[str, Any]]:
        """Answer and charge one request: (answer, the response)."""
        output_text = self.answer(asked)
        if output_text.item != "succeeded":
            return output_text, {}
        text = output_text.text
        if output_text.stop == "truncated":
            text = text[: 4 * asked.max_tokens]
        ends = [position for stop in asked.stop if (position := text.find(stop)) >= 0]
        if ends:
            text = text[: min(ends)]
        tools = json.dumps(asked.body["tools"]) if asked.tools else ""
        system, rest = asked.system, "".join(map(_content, asked.body["messages"]))
        written = read = 0
        full = tokens(tools) + tokens(system) + tokens(rest)
        # what is marked is cached with all before it: first the tools, then the instructions
        prefix = (
            (tools, system) if asked.is_anthropic and "cache_control" in json.dumps(asked.body.get("system")) else ()
        )
        prefix = prefix or ((tools, "") if asked.is_anthropic and "cache_control" in tools else ())
        if prefix:
            size = sum(map(tokens, prefix))
            with self._lock:
                is_cached = prefix in self._cached
                self._cached.add(prefix)
            written, read = (0, size) if is_cached else (size, 0)
            full -= size
        out = tokens(text) + sum(tokens(name) + tokens(str(arguments)) for name, arguments in output_text.calls)
        with self._lock:
            self.charged.append((full, written, read, out, batch))
            first_id, self._calls_made = self._calls_made, self._calls_made + len(output_text.calls)
        make = _anthropic_message if asked.is_anthropic else _openai_completion
        answer = replace(output_text, text=text, stop="stopped" if ends else output_text.stop)
        response = make(asked, answer, (full, written, read, out), first_id)
        if self.thinks and asked.is_anthropic:
            self._think(response, asked.turn)
        return output_text, response

    def _think(self, response: dict[str, Any], turn: int) -> None:
        """Insert a thought before an answer; every second one is hidden."""
        thought = {"type": "thinking", "thinking": f"hm {turn}", "signature": f"signed {turn}"}
        if turn % 2:
            thought = {"type": "redacted_thinking", "data": f"hidden {turn}"}
        for block in response["content"]:
            if block["type"] == "tool_use":
                self._thoughts[block["id"]] = thought
        response["content"] = [thought, *response["content"]]

    def _missing_thoughts(self, asked: Asked) -> str:
        """Why the service refuses calls without the thoughts before them; "" where it does not."""
        for sent in asked.body["messages"] if asked.is_anthropic else ():
            blocks = sent["content"] if isinstance(sent["content"], list) else []
            called = [block["id"] for block in blocks if block["type"] == "tool_use"]
            if called and called[0] in self._thoughts and blocks[0] != self._thoughts[called[0]]:
                return "messages: expected the thinking blocks of the turn as they were given, before its tool_use"
        return ""

    def post(self, asked: Asked) -> tuple[int, dict[str, str], bytes | None]:
        """(status, headers, body) of the response to a POST; body None closes the connection."""
        with self._lock:
            asked.number = len(self.asked)
            self.asked.append(asked)
            fault = self.always(asked)
            if fault is None and self.faults:
                fault = self.faults.pop(0)
            key = asked.headers.get("idempotency-key", "")
            replay = self._replies.get(key) if self.keeps_keys and key else None
        if fault is None and replay is not None:
            return replay[0], {"Idempotent-Replayed": "true"}, replay[1]
        if fault is not None and not fault.charged:
            time.sleep(fault.wait_s)
            return fault.status, fault.headers, fault.body
        problem = (_problem(asked) or self._missing_thoughts(asked)) if "messages" in asked.body else ""
        if problem:
            refusal = status(400, problem)
            return refusal.status, refusal.headers, refusal.body
        time.sleep(self.wait_s)
        response = replay[1] if replay else json.dumps(self._route(asked)).encode()
        with self._lock:
            self._replies[key] = (200, response)
        if fault is not None:
            time.sleep(fault.wait_s)
            return fault.status, fault.headers, fault.body
        return 200, {}, response

    def _route(self, asked: Asked) -> dict[str, Any]:
        if asked.path == "/v1/messages/batches":
            return _anthropic_batch(self, self._new_batch(asked.body["requests"], {}))
        if asked.path == "/v1/batches":
            lines = self.files[asked.body["input_file_id"]].decode().split("\n")
            items = [json.loads(line) for line in lines if line.strip()]
            return _openai_batch(self._new_batch(items, asked.body.get("metadata") or {}))
        if asked.path == "/v1/files":
            file = f"file-{len(self.files)}"
            self.files[file] = asked.body["content"]
            return {"id": file, "object": "file", "bytes": 1, "created_at": 0, "filename": "x", "purpose": "batch"}
        return self.respond(asked)[1]

    def _new_batch(self, items: list[dict[str, Any]], metadata: dict[str, str]) -> Batch:
        with self._lock:
            batch = Batch(f"batch_{len(self.batches)}", items, self.batch_looks, time.time(), metadata)
            self.batches[batch.id] = batch
        return batch

    def look(self, batch: Batch) -> None:
        """Poll a batch once. The last poll before its end creates its results, in the wrong order."""
        with self._lock:
            batch.looks_left -= 1
            if batch.looks_left > 0 or batch.results:
                return
        path = "/v1/messages" if "params" in batch.items[0] else "/v1/chat/completions"
        for item in reversed(batch.items):
            body = item.get("params") or item.get("body") or {}
            requested = Asked(path, {}, body)
            assert not _problem(requested), _problem(requested)
            assert not self._missing_thoughts(requested)
            text, response = self.respond(requested, batch=True)
            batch.results.append((item["custom_id"], text, response or None))

    def get(self, path: str, query: dict[str, list[str]]) -> tuple[int, Any]:
        """(status, JSON value or text) of the response to a GET."""
        self.gets.append(path)
        parts = path.strip("/").split("/")
        if path == "/v1/models":
            return 200, {"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]}
        if path in ("/v1/messages/batches", "/v1/batches"):
            newest = sorted(self.batches.values(), key=lambda batch: batch.created, reverse=True)
            after = (query.get("after_id") or query.get("after") or [""])[0]
            names = [batch.id for batch in newest]
            start = names.index(after) + 1 if after in names else 0
            page = newest[start : start + 2]
            more = start + 2 < len(newest)
            as_json = [_anthropic_batch(self, b) if "messages" in parts else _openai_batch(b) for b in page]
            ends = {"first_id": page[0].id if page else None, "last_id": page[-1].id if page else None}
            return 200, {"data": as_json, "has_more": more, "object": "list", **ends}
        if parts[-1] == "results":
            lines = [json.dumps(_anthropic_result(*result)) for result in self.batches[parts[-2]].results]
            return 200, "\n".join(lines) + "\n"
        if parts[-1] == "content":
            batch = self.batches[parts[-2].removeprefix("out-").removeprefix("err-")]
            is_error = parts[-2].startswith("err-")
            chosen = [result for result in batch.results if (result[2] is None) == is_error]
            return 200, "".join(json.dumps(_openai_result(*result), ensure_ascii=False) + "\n" for result in chosen)
        if parts[-1] in self.batches:
            batch = self.batches[parts[-1]]
            self.look(batch)
            return 200, _anthropic_batch(self, batch) if "messages" in parts else _openai_batch(batch)
        return 404, {"error": {"message": f"no {path}"}}


def _content(message: dict[str, Any]) -> str:
    """Return the text of a message that is counted."""
    if message["role"] == "system":
        return ""
    content = message["content"]
    text = content if isinstance(content, str) else json.dumps(content)
    return text + (json.dumps(message["tool_calls"]) if message.get("tool_calls") else "")


def _read_anthropic(sent: dict[str, Any]) -> list[Message]:
    """One message of the protocol: results of tools are blocks of a user's."""
    if isinstance(sent["content"], str):
        return [{"role": sent["role"], "content": sent["content"]}]
    messages: list[Message] = []
    text = "".join(block["text"] for block in sent["content"] if block["type"] == "text")
    calls = [
        function_call(block["name"], block["input"], block["id"])
        for block in sent["content"]
        if block["type"] == "tool_use"
    ]
    for block in sent["content"]:
        if block["type"] == "tool_result":
            messages.append({"role": "tool", "content": block["content"], "tool_call_id": block["tool_use_id"]})
    if calls:
        messages.append({"role": sent["role"], "content": text, "tool_calls": calls})
    elif text:
        messages.append({"role": sent["role"], "content": text})
    return messages


def _read_openai(sent: dict[str, Any]) -> list[Message]:
    if sent["role"] == "system":
        return []
    message: Message = {"role": sent["role"], "content": sent["content"] or ""}
    if sent.get("tool_calls"):
        message["tool_calls"] = [
            function_call(call["function"]["name"], json.loads(call["function"]["arguments"]), call["id"])
            for call in sent["tool_calls"]
        ]
    if sent["role"] == "tool":
        message["tool_call_id"] = sent["tool_call_id"]
    return [message]


def _problem(asked: Asked) -> str:
    """Why the services would refuse a conversation; "" where they would not."""
    if asked.is_anthropic:
        for sent in asked.body["messages"]:
            if sent["role"] not in ("user", "assistant"):
                return f"messages: unexpected role {sent['role']}"
            blocks = (
                [{"type": "text", "text": sent["content"]}] if isinstance(sent["content"], str) else sent["content"]
            )
            if not blocks or any(block["type"] == "text" and not block["text"].strip() for block in blocks):
                return "messages: text content blocks must contain non-whitespace text"
    if any("tool_calls" in m or m["role"] == "tool" for m in asked.messages) and not asked.tools and asked.is_anthropic:
        return "messages: tool_use blocks need tools"
    waiting: list[str] = []  # calls whose results have to follow at once
    for message in asked.messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                return f"messages: a result of {message['tool_call_id']}, which was not called just before"
            waiting.remove(message["tool_call_id"])
        elif waiting:
            return f"messages: {waiting} have no result"
        waiting += [call["id"] for call in message.get("tool_calls", [])]
    return f"messages: {waiting} have no result" if waiting else ""


def _anthropic_message(asked: Asked, said: Said, counts: tuple[int, int, int, int], first_id: int) -> dict[str, Any]:
    refused = said.stop == "refused"
    text = [{"type": "text", "text": said.text}] if said.text or not said.calls else []
    calls = [
        {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": arguments}
        for number, (name, arguments) in enumerate(said.calls, start=first_id)
    ]
    details = {"type": "refusal", "category": None, "explanation": said.text}
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": asked.body["model"],
        "content": [] if refused else [*text, *calls],
        "stop_reason": "tool_use" if calls and said.stop == "end" else NO_REASON[said.stop],
        "stop_details": details if refused else None,
        "usage": {
            "input_tokens": counts[0] * COUNTED,
            "cache_creation_input_tokens": counts[1] * COUNTED,
            "cache_read_input_tokens": counts[2] * COUNTED,
            "output_tokens": counts[3] * COUNTED,
        },
    }


def _openai_completion(asked: Asked, said: Said, counts: tuple[int, int, int, int], first_id: int) -> dict[str, Any]:
    refused = said.stop == "refused"
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if refused or (said.calls and not said.text) else said.text,
        "refusal": said.text if refused else None,
    }
    if said.calls:
        message["tool_calls"] = [
            {
                "id": f"call_{number}",
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
                },
            }
            for number, (name, arguments) in enumerate(said.calls, start=first_id)
        ]
    finish = "tool_calls" if said.calls and said.stop == "end" else FINISH[said.stop]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": asked.body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {
            "prompt_tokens": sum(counts[:3]) * COUNTED,
            "completion_tokens": counts[3] * COUNTED,
            "total_tokens": sum(counts) * COUNTED,
            "prompt_tokens_details": {"cached_tokens": counts[2] * COUNTED},
        },
    }


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _anthropic_batch(server: JudgeServer, batch: Batch) -> dict[str, Any]:
    counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
    if batch.finished:
        for _, text, _ in batch.results:
            counts[text.item] += 1
    else:
        counts["processing"] = len(batch.items)
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": "ended" if batch.finished else "in_progress",
        "request_counts": counts,
        "created_at": _moment(batch.created),
        "expires_at": _moment(batch.created + 86400),
        "ended_at": None,
        "results_url": f"{server.url}/v1/messages/batches/{batch.id}/results" if batch.finished else None,
    }


def _anthropic_result(name: str, said: Said, response: dict[str, Any] | None) -> dict[str, Any]:
    result: dict[str, Any] = {"type": said.item}
    if response is not None:
        result["message"] = response
    elif said.item == "errored":
        error = {"type": "invalid_request_error", "message": said.text}
        result["error"] = {"type": "error", "error": error}
    return {"custom_id": name, "result": result}


def _openai_batch(batch: Batch) -> dict[str, Any]:
    failed = sum(response is None for _, _, response in batch.results)
    state = "completed" if batch.finished else "in_progress"
    return {
        "id": batch.id,
        "object": "batch",
        "status": "failed" if batch.error else state,
        "created_at": int(batch.created),
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "input_file_id": "file-0",
        "metadata": batch.metadata or None,
        "output_file_id": f"out-{batch.id}" if len(batch.results) > failed else None,
        "error_file_id": f"err-{batch.id}" if failed else None,
        "errors": {"object": "list", "data": [{"message": batch.error, "code": "bad"}]} if batch.error else None,
        "request_counts": {"total": len(batch.items), "completed": len(batch.results) - failed, "failed": failed},
    }


def _openai_result(name: str, said: Said, response: dict[str, Any] | None) -> dict[str, Any]:
    line: dict[str, Any] = {"id": f"r-{name}", "custom_id": name, "response": None, "error": None}
    if response is not None:
        line["response"] = {"status_code": 200, "request_id": "r", "body": response}
    elif said.item == "errored":
        body = {"error": {"message": said.text, "type": "invalid_request_error", "code": None}}
        line["response"] = {"status_code": 400, "request_id": "r", "body": body}
    else:
        line["error"] = {"code": f"batch_{said.item}", "message": f"This request is {said.item}."}
    return line


def _handler(server: JudgeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # without it an answer in two pieces waits 40 ms for an acknowledgement
        disable_nagle_algorithm = True

        def _headers(self) -> dict[str, str]:
            headers = {name.lower(): value for name, value in self.headers.items()}
            server.keys += [headers[name] for name in ("authorization", "x-api-key") if name in headers]
            return headers

        def do_POST(self) -> None:
            headers = self._headers()
            content = self.rfile.read(int(headers.get("content-length", 0)))
            path = urlsplit(self.path).path
            body = {"content": _upload(content)} if path == "/v1/files" else json.loads(content)
            with server._lock:
                server._at_once += 1
                server.most_at_once = max(server.most_at_once, server._at_once)
            code, more, response = server.post(Asked(path, headers, body))
            with server._lock:
                server._at_once -= 1
            self._answer(code, more, response)

        def do_GET(self) -> None:
            self._headers()
            if server.get_faults and (fault := server.get_faults.pop(0)) is not None:
                time.sleep(fault.wait_s)
                self._answer(fault.status, fault.headers, fault.body)
                return
            parts = urlsplit(self.path)
            code, value = server.get(parts.path, parse_qs(parts.query))
            is_text = isinstance(value, str)
            kind = {"Content-Type": "application/x-jsonl" if is_text else "application/json"}
            self._answer(code, kind, value.encode() if is_text else json.dumps(value).encode())

        def _answer(self, code: int, headers: dict[str, str], body: bytes | None) -> None:
            try:
                if body is None or not code:
                    self.close_connection = True
                    self.connection.close()
                    return
                self.send_response(code)
                for name, value in ({"Content-Type": "application/json"} | headers).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:  # the client has gone
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def _upload(content: bytes) -> bytes:
    """The file of a multipart upload: the part whose disposition has a file name."""
    boundary = content[: content.index(b"\r\n")]
    part = next(part for part in content.split(boundary) if b"filename=" in part)
    return part.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n")


# --- clients of it

PRICES = {"anthropic": (1.0, 1.25, 0.1, 5.0), "openai_compatible": (0.4, 0.5, 0.1, 1.6)}
"""Prices of the models below, USD per million tokens: input, cache write, cache read, output."""
MODELS = {"anthropic": "claude-haiku-4-5", "openai_compatible": "gpt-4.1-mini"}


def question(number: int, **fields: Any) -> Any:
    """A request that no other number makes."""
    from rlhf_lab.packs.judging.judges.requests import CompletionRequest

    values = {"system": "You judge replies.", "max_tokens": 64} | fields
    return CompletionRequest(({"role": "user", "content": f"question {number}"},), **values)


def connect(url: str, kind: str, outputs: Any, account: str = "run", pause_s: float = 0.01, **settings: Any) -> Any:
    """A client with one of the real SDKs, whose pauses are short; `url` is the server's."""
    from rlhf_lab.packs.judging.judges.backends import anthropic, openai_compatible
    from rlhf_lab.packs.judging.judges.backends.settings import Anthropic, OpenAICompatible
    from rlhf_lab.packs.judging.judges.client import JudgeClient
    from rlhf_lab.packs.judging.judges.context import JudgeContext

    base_url = url if kind == "anthropic" else f"{url}/v1"
    values = {"model": MODELS[kind], "base_url": base_url, "poll_s": 0.01, "request_timeout_s": 10.0} | settings
    caller = JudgeContext(account, outputs)
    if kind == "anthropic":
        chosen = Anthropic(**values)
        return JudgeClient(anthropic.AnthropicBackend(chosen), chosen, caller, pause_s=pause_s)
    compatible = OpenAICompatible(**values)
    return JudgeClient(openai_compatible.OpenAIBackend(compatible), compatible, caller, pause_s=pause_s)


def start_client(code: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    """Start a Python process whose code can import this module."""
    path = os.pathsep.join([str(Path(__file__).parent), os.environ["PYTHONPATH"]])
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": path} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until(condition: Callable[[], bool], timeout: float = 30.0) -> None:
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def assert_ledger_is_the_servers(client: Any, server: JudgeServer, kind: str) -> None:
    """Requests, tokens and USD, each counted by the server on its own."""
    from rlhf_lab.packs.judging.judges.requests import Usage

    ledger = client.ledger
    assert ledger.requests == server.billed_requests
    counts = [sum(charge[position] for charge in server.charged) for position in range(4)]
    assert ledger.usage == Usage(*counts)
    assert ledger.spent_usd == pytest.approx(server.billed_usd(PRICES[kind]), rel=1e-9)
    assert ledger.open_usd == 0
    assert client.channel.store.counted_usd(client.channel.account) == pytest.approx(ledger.counted_usd, rel=1e-9)
