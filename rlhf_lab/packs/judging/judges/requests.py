"""What a language model is asked, and what it answers: the currency of judges, data synthesis and agents."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal, Protocol

from rlhf_lab.core.messages import Message

Stop = Literal["end", "refused", "truncated", "rejected"]
"""Why an answer ended. `rejected` is none: the service does not take the request (`Request.may_be_rejected`)."""


@dataclass(frozen=True)
class Request:
    """One question to a language model.

    Attributes:
        messages: the conversation, of the roles user, assistant and tool; the last one is not the assistant's.
        system: instructions in front of it. Requests that share them are asked with prompt caching where it exists.
        max_tokens: most tokens of the answer.
        schema: JSON schema of the answer; None is free text.
        draw: which of several independent answers to the same question this is.
        about: the same question as data, for backends that answer from the truth of a world and read no text. No part
            of the request's identity: the text says it all.
        tools: definitions of the tools that the model may call, as chat templates take them.
        stop: texts that end the answer; they are no part of it.
        may_be_rejected: a request that the service does not take, such as one that is too long, has a reply that says
            so, with the stop `rejected`, and ends no other. Such a reply is not stored. No part of the identity.
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "messages", tuple(with_texts(message, writable) for message in self.messages))
        object.__setattr__(self, "system", writable(self.system))

    def digest(self, backend: Mapping[str, Any]) -> str:
        """SHA-256 of everything that decides the answer: the request, and the identity of who answers it."""
        material = {
            "backend": dict(backend),
            "messages": list(self.messages),
            "system": self.system,
            "max_tokens": self.max_tokens,
            "schema": self.schema,
            "draw": self.draw,
        }
        if self.tools:
            material["tools"] = [dict(tool) for tool in self.tools]
        if self.stop:
            material["stop"] = list(self.stop)
        return sha256(json.dumps(material, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def writable(text: str) -> str:
    """A text as UTF-8 can hold it: JSON may hold half a surrogate pair, which becomes a question mark."""
    return text.encode("utf-8", "replace").decode()


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON value with all its texts changed, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): with_texts(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [with_texts(item, change) for item in value]
    return value


@dataclass(frozen=True)
class Usage:
    """Tokens of one answer, as the service counts them.

    Attributes:
        input_tokens: read at the full price.
        cache_write_tokens, cache_read_tokens: read into and from the prompt cache; not among `input_tokens`.
        output_tokens: written.
    """

    input_tokens: int = 0
    cache_write_tokens: int = 0
    cache_read_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True)
class Reply:
    """What came back. A reply that was refused or cut off is an answer too: it was paid for and is kept.

    Attributes:
        text: of the answer; of a refusal, what was said.
        stop: why it ended.
        usage: what it cost in tokens; zero where nothing is counted.
        cost_usd: what it cost when it was asked; 0 for one that came from the store.
        stored: whether it came from the store.
        stored_cost_usd: of one that came from the store: what it cost when it was asked.
        tool_calls: the tools that it calls, as `core.messages.Message` has them, each with an id. Arguments that could
            not be read are `{core.tools.MALFORMED: text}`.
        blocks: as `core.messages.Message` has them.
        latency_s: seconds of the attempt that was answered, also where it came from the store; 0 where it is not known,
            as of a batch. No part of what was answered: replies that differ in nothing else are equal.
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
    def asked_cost_usd(self) -> float:
        """What it cost when it was asked, whether now or by an earlier run."""
        return self.cost_usd + self.stored_cost_usd

    @property
    def message(self) -> Message:
        """The answer as the assistant's message of the next request."""
        message = Message(role="assistant", content=self.text)
        if self.tool_calls:
            message["tool_calls"] = [dict(call) for call in self.tool_calls]
        if self.blocks:
            message["blocks"] = [dict(block) for block in self.blocks]
        return message


class Completer(Protocol):
    """Who answers requests: `client.Client` for services, or a backend by itself where nothing is sent."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """Who answers: everything that decides the answers but the requests; JSON values."""
        ...

    def complete_many(self, requests: Sequence[Request], *, title: str = "") -> list[Reply]:
        """The answers, in the order of the requests.

        Args:
            title: of the progress bar.

        Raises JudgeUnavailable or BudgetExceeded when some could not be had; those that were answered are stored, and
        the same call goes on from there.
        """
        ...
