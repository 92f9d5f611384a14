"""Requests to a language model and their completions, shared by judges, data synthesis and agents."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal, Protocol

from rlhf_lab.core.messages import Message
from rlhf_lab.core.text import well_formed_value
from rlhf_lab.core.tools import call_id

Stop = Literal["end", "refused", "truncated", "rejected", "unanswered"]
"""Stop reason of a completion. `rejected`: the service rejected the request (see `may_be_rejected`). `unanswered`: the
service gave no answer, and the caller tolerates that; such a completion is never stored."""


@dataclass(frozen=True)
class CompletionRequest:
    """A request to a language model.

    Attributes:
        messages: the conversation, with the roles user, assistant and tool. The last message is not the assistant's.
        system: system instructions. Requests with the same instructions use prompt caching if the service supports it.
        max_tokens: maximum number of tokens of the answer.
        schema: JSON schema of the answer; None for free text.
        draw: index of the answer among independent answers to the same question.
        about: the same question as data, for backends that answer from the truth of a world and read no text. It is
            not part of the request's identity, because the text contains the same information.
        tools: definitions of the tools that the model may call, in the form of chat templates.
        stop: strings that end the answer; they are not included in it.
        may_be_rejected: True if the service may reject this request, for example because it is too long. The completion
            then has the stop reason `rejected`, other requests continue, and nothing is stored. It is not part of the
            identity.
        kept: number of first messages that a local model never leaves out of a conversation that is too long for it,
            such as those of the task. It is not part of the identity.
    """

    messages: tuple[Message, ...]
    system: str = ""
    max_tokens: int = 1024
    schema: Mapping[str, Any] | None = None
    draw: int = 0
    about: object | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    stop: tuple[str, ...] = ()
    may_be_rejected: bool = False
    kept: int = 1

    def __post_init__(self) -> None:
        # lone surrogates could not be encoded in UTF-8, neither for the digest nor for the service
        for name in ("messages", "system", "schema", "tools", "stop"):
            object.__setattr__(self, name, well_formed_value(getattr(self, name)))

    def digest(self, backend: Mapping[str, Any]) -> str:
        """Return the SHA-256 of everything that determines the answer: the request and the backend's identity."""
        material = {
            "backend": dict(backend),
            "messages": list(self.messages),
            "system": self.system,
            "max_tokens": self.max_tokens,
            "schema": self.schema,
            "draw": self.draw,
        }
        # optional fields enter only if they are set, so that digests stored by earlier versions stay valid
        if self.tools:
            material["tools"] = [dict(tool) for tool in self.tools]
        if self.stop:
            material["stop"] = list(self.stop)
        return sha256(json.dumps(material, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


@dataclass(frozen=True)
class Usage:
    """Tokens of one answer, as counted by the service.

    Attributes:
        input_tokens: input tokens at the full price.
        cache_write_tokens, cache_read_tokens: input tokens written to and read from the prompt cache; not included in
            `input_tokens`.
        output_tokens: output tokens.
    """

    input_tokens: int = 0
    cache_write_tokens: int = 0
    cache_read_tokens: int = 0
    output_tokens: int = 0

    @property
    def read_tokens(self) -> int:
        """All input tokens, cached or not."""
        return self.input_tokens + self.cache_write_tokens + self.cache_read_tokens


@dataclass(frozen=True)
class Completion:
    """Completion of a request. A refused or truncated completion is an answer too: it was paid for and is stored.

    Attributes:
        text: text of the answer, or of the refusal.
        stop: stop reason.
        usage: tokens used; zero if nothing is counted.
        cost_usd: cost in USD of this request; 0 for a completion from the store.
        stored: True if the completion came from the store.
        tool_calls: tool calls in the form of `core.messages.Message`, each with an id. Unreadable arguments are
            `{core.tools.MALFORMED: text}`.
        blocks: content blocks in the form of `core.messages.Message`.
        latency_s: seconds of the successful attempt, also for a stored completion; 0 if unknown, e.g. for a batch.
            Completions that differ only in latency are equal.
        stored_cost_usd: original cost in USD of a completion from the store.
    """

    text: str
    stop: Stop = "end"
    usage: Usage = Usage()
    cost_usd: float = 0.0
    stored: bool = False
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    blocks: tuple[Mapping[str, Any], ...] = ()
    latency_s: float = field(default=0.0, compare=False)
    stored_cost_usd: float = field(default=0.0, compare=False)

    @property
    def paid_cost_usd(self) -> float:
        """Cost in USD when the request was sent, by this run or by an earlier one."""
        return self.cost_usd + self.stored_cost_usd

    @property
    def message(self) -> Message:
        """The answer as an assistant message for the next request."""
        # optional keys are left out if empty, so that equal messages have equal digests
        message = Message(role="assistant", content=self.text)
        if self.tool_calls:
            message["tool_calls"] = [dict(call) for call in self.tool_calls]
        if self.blocks:
            message["blocks"] = [dict(block) for block in self.blocks]
        return message


class Completer(Protocol):
    """Answers requests: `client.JudgeClient` for services, or a backend by itself if nothing is sent."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """JSON values that identify the backend: everything that determines the answers except the requests."""
        ...

    def complete_many(self, requests: Sequence[CompletionRequest], *, title: str = "") -> list[Completion]:
        """Return the completions in the order of the requests.

        Args:
            title: title of the progress bar.

        Raises JudgeUnavailable or BudgetExceeded if some requests could not be answered. Finished answers are stored,
        and the same call resumes from there.
        """
        ...


def calls_before(messages: Sequence[Message]) -> int:
    """Return the number of calls in a conversation, which is the index of its next call."""
    return sum(len(message.get("tool_calls") or ()) for message in messages)


def with_call_ids(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield the messages with missing ids filled in, e.g. for a conversation from a person or a chat template.

    A call's id follows from its index in the conversation. Results without an id are matched with the preceding calls
    in order.
    """
    number = 0
    waiting: list[str] = []  # ids of calls that have no result yet
    for message in messages:
        if calls := message.get("tool_calls"):
            waiting = []
            numbered = []
            for call in calls:
                id = str(call.get("id") or call_id(number))
                waiting.append(id)
                numbered.append({**call, "id": id})
                number += 1
            message = {**message, "tool_calls": numbered}
        elif message["role"] == "tool":
            # a result without a preceding call still needs some id
            id = message.get("tool_call_id") or next(iter(waiting), call_id(number))
            if id in waiting:
                waiting.remove(id)
            message = {**message, "tool_call_id": id}
        yield message
