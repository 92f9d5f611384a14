"""Messages, tools and settings of inspect as a request, and a reply as inspect's message.

Everything of inspect is plain data here: what `model_dump` of its classes gives, and what `model_validate` takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import MALFORMED, function_call
from rlhf_lab.packs.judging.judges.requests import Reply, Request

Json = Mapping[str, Any]

SAMPLING = ("max_tokens", "temperature", "stop_seqs", "seed")
"""Settings of inspect's GenerateConfig that decide how the lab samples."""
OF_INSPECT: tuple[str, ...] = ("max_retries", "timeout", "attempt_timeout", "stream_idle_timeout", "max_connections")
OF_INSPECT += ("cache", "adaptive_connections", "system_message", "max_tool_output", "reasoning_history")
OF_INSPECT += ("fail_on_refusal",)
"""Those that inspect itself follows, whoever answers."""
WITHOUT_MEANING: tuple[str, ...] = ("cache_prompt", "internal_tools", "parallel_tool_calls", "verbosity", "effort")
WITHOUT_MEANING += ("reasoning_effort", "reasoning_mode", "reasoning_tokens", "reasoning_summary", "batch")
WITHOUT_MEANING += ("extra_headers",)
"""Those of services and of models that think, which change nothing here: the user is told so."""
NEUTRAL = {"top_p": 1.0, "num_choices": 1, "best_of": 1, "frequency_penalty": 0.0, "presence_penalty": 0.0}
NEUTRAL |= {"top_k": 0, "logprobs": False, "batch": False}
"""Values that ask for what the lab does anyway."""

STOP_REASONS = {"end": "stop", "truncated": "max_tokens", "refused": "content_filter"}


def check_settings(config: Json) -> list[str]:
    """Names of settings that are given and have no meaning here. Raises ConfigError for those that would be broken."""
    given = [name for name, value in config.items() if value is not None and NEUTRAL.get(name) != value]
    others = [name for name in given if name not in (*SAMPLING, *OF_INSPECT)]
    refused = [name for name in others if name not in WITHOUT_MEANING]
    if refused:
        advice = f"models of rlhf_lab are sampled with {', '.join(SAMPLING)} alone; leave it out"
        raise ConfigError([f"{name}={config[name]!r}: {advice}" for name in refused])
    return others


def check_tool_choice(choice: Any) -> None:
    """Raises ConfigError where a call is demanded, which sampling cannot promise. "none" comes without tools."""
    if choice not in ("auto", "none"):
        raise ConfigError(f"tool_choice={choice!r}: models of rlhf_lab call tools as they like; use 'auto'")


def to_request(messages: Sequence[Json], tools: Sequence[Json], config: Json) -> Request:
    """What inspect asks, as a request with draw 0, and with `max_tokens` 0 where nothing limits the answer.

    Args:
        messages: user, assistant, tool and, in front of them, system.
        tools: name, description and parameters of each.
        config: checked by `check_settings`.

    Raises:
        ConfigError: something other than text, instructions behind the first turn, or nothing to answer.
    """
    instructions = []
    turns: list[Message] = []
    for number, message in enumerate(messages, start=1):
        if message["role"] != "system":
            turns.append(_turn(message, f"message {number}"))
        elif turns:
            raise ConfigError(f"message {number} is a system message behind a turn; put it in front")
        else:
            instructions.append(_text(message["content"], f"message {number}"))
    if not turns or turns[-1]["role"] == "assistant":
        raise ConfigError("the conversation ends with the assistant's turn; add a user message that can be answered")
    return Request(
        tuple(turns),
        system="\n\n".join(instructions),
        max_tokens=config.get("max_tokens") or 0,
        tools=tuple(_definition(tool) for tool in tools),
        stop=tuple(config.get("stop_seqs") or ()),
    )


def _turn(message: Json, place: str) -> Message:
    text = _text(message["content"], place)
    if message["role"] == "tool":
        error = message.get("error")
        # as inspect's own providers: the model reads the error in place of a result
        turn = Message(role="tool", content=error["message"] if error else text)
        if message.get("function"):
            turn["name"] = message["function"]
        if message.get("tool_call_id"):
            turn["tool_call_id"] = message["tool_call_id"]
        return turn
    turn = Message(role=message["role"], content=text)
    if calls := message.get("tool_calls"):
        turn["tool_calls"] = [function_call(call["function"], call["arguments"], call["id"]) for call in calls]
    return turn


def _text(content: str | Iterable[Json], place: str) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for part in content:
        if part["type"] != "text":
            raise ConfigError(f"{place} holds {part['type']}; models of rlhf_lab read text alone")
        texts.append(part["text"])
    return "\n".join(texts)


def _definition(tool: Json) -> dict[str, Any]:
    """A tool as chat templates take it."""
    function = {name: tool[name] for name in ("name", "description", "parameters")}
    return {"type": "function", "function": function}


def from_reply(reply: Reply, model: str) -> dict[str, Any]:
    """A reply as inspect's ModelOutput."""
    calls = []
    for call in reply.tool_calls:
        function = call["function"]
        calls.append(tool_call(function["name"], function["arguments"], call["id"]))
    message = {
        "role": "assistant",
        "content": reply.text,
        "source": "generate",
        "model": model,
        "tool_calls": calls or None,
    }
    stop = "tool_calls" if calls and reply.stop == "end" else STOP_REASONS[reply.stop]
    tokens = usage(reply.usage.input_tokens, reply.usage.output_tokens)
    return {
        "model": model,
        "choices": [{"message": message, "stop_reason": stop}],
        "usage": tokens,
        "time": reply.latency_s,
    }


def tool_call(name: str, arguments: Json, id: str) -> dict[str, Any]:
    """A call as inspect has it. Of one that could not be read, inspect tells the model so and calls nothing."""
    call = {"id": id, "function": name, "arguments": dict(arguments), "type": "function"}
    if MALFORMED in arguments:
        call["parse_error"] = f"the arguments of {name} are no JSON object: {arguments[MALFORMED]}"
    return call


def usage(input_tokens: int, output_tokens: int, cost_usd: float | None = None) -> dict[str, Any]:
    """Tokens as inspect's ModelUsage."""
    total = input_tokens + output_tokens
    tokens = {"input_tokens": input_tokens, "output_tokens": output_tokens, "total_tokens": total}
    return tokens if cost_usd is None else {**tokens, "total_cost": cost_usd}
