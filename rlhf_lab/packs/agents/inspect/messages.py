"""Conversion between inspect's messages, tools and settings and our requests and completions.

inspect's objects are dicts here: the result of `model_dump` of its classes, or the input of `model_validate`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import MALFORMED, function_call
from rlhf_lab.packs.judging.judges.requests import Completion, CompletionRequest

Json = Mapping[str, Any]

SAMPLING = ("max_tokens", "temperature", "stop_seqs", "seed")
"""Settings of inspect's GenerateConfig that the built-in sampler supports."""
OF_INSPECT: tuple[str, ...] = ("max_retries", "timeout", "attempt_timeout", "stream_idle_timeout", "max_connections")
OF_INSPECT += ("cache", "adaptive_connections", "system_message", "max_tool_output", "reasoning_history")
OF_INSPECT += ("fail_on_refusal",)
"""Settings that inspect itself applies, for any model."""
WITHOUT_MEANING: tuple[str, ...] = ("cache_prompt", "internal_tools", "parallel_tool_calls", "verbosity", "effort")
WITHOUT_MEANING += ("reasoning_effort", "reasoning_mode", "reasoning_tokens", "reasoning_summary", "batch")
WITHOUT_MEANING += ("extra_headers",)
"""Settings of services and of reasoning models, which have no effect here; the user gets a warning."""
NEUTRAL: dict[str, Any] = {
    "top_p": 1.0,
    "num_choices": 1,
    "best_of": 1,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "top_k": 0,
    "logprobs": False,
    "batch": False,
}
"""Values that match the behaviour of the built-in sampler, and are therefore accepted."""

# our stop reason → inspect's
STOP_REASONS = {"end": "stop", "truncated": "max_tokens", "refused": "content_filter"}


def check_settings(config: Json) -> list[str]:
    """Return the names of settings that have no effect here. Raise ConfigError for other settings that the built-in
    sampler does not support.
    """
    # A setting with a neutral value asks for nothing special, so it is accepted silently.
    provided = [name for name, value in config.items() if value is not None and NEUTRAL.get(name) != value]
    others = [name for name in provided if name not in (*SAMPLING, *OF_INSPECT)]
    refused = [name for name in others if name not in WITHOUT_MEANING]
    if refused:
        supported = ", ".join(SAMPLING)
        hint = f"models of rlhf_lab support only {supported}; leave it out"
        problems = [f"{name}={config[name]!r}: {hint}" for name in refused]
        raise ConfigError(problems)
    return others


def check_tool_choice(choice: Any) -> None:
    """Raise ConfigError if a call is required, which sampling cannot guarantee. With "none", inspect passes no
    tools.
    """
    if choice not in ("auto", "none"):
        raise ConfigError(f"tool_choice={choice!r}: models of rlhf_lab cannot be forced to call a tool; use 'auto'")


def to_request(messages: Sequence[Json], tools: Sequence[Json], config: Json) -> CompletionRequest:
    """Convert inspect's request to a CompletionRequest with draw 0. `max_tokens` is 0 if the config sets no limit.

    Args:
        messages: messages of the roles user, assistant and tool, preceded by system messages.
        tools: name, description and parameters of each tool.
        config: settings, checked by `check_settings`.

    Raises:
        ConfigError: content other than text, system messages after the first turn, or no message to answer.
    """
    instructions = []
    turns: list[Message] = []
    for number, message in enumerate(messages, start=1):
        location = f"message {number}"
        if message["role"] != "system":
            turns.append(_turn(message, location))
        elif turns:
            # Many chat templates accept a system message only at the start.
            raise ConfigError(f"{location} is a system message after a turn; move it to the start")
        else:
            instructions.append(_text(message["content"], location))
    if not turns or turns[-1]["role"] == "assistant":
        raise ConfigError("the conversation ends with an assistant message; add a user message to be answered")
    return CompletionRequest(
        tuple(turns),
        system="\n\n".join(instructions),
        max_tokens=config.get("max_tokens") or 0,
        tools=tuple(_definition(tool) for tool in tools),
        stop=tuple(config.get("stop_seqs") or ()),
    )


def _turn(message: Json, location: str) -> Message:
    text = _text(message["content"], location)
    if message["role"] == "tool":
        error = message.get("error")
        # As in inspect's own providers, the model reads the error instead of a result.
        content = error["message"] if error else text
        turn = Message(role="tool", content=content)
        if message.get("function"):
            turn["name"] = message["function"]
        if message.get("tool_call_id"):
            turn["tool_call_id"] = message["tool_call_id"]
        return turn
    turn = Message(role=message["role"], content=text)
    calls = message.get("tool_calls")
    if calls:
        turn["tool_calls"] = [function_call(call["function"], call["arguments"], call["id"]) for call in calls]
    return turn


def _text(content: str | Iterable[Json], location: str) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for part in content:
        if part["type"] != "text":
            raise ConfigError(f"{location} contains {part['type']}; models of rlhf_lab read only text")
        texts.append(part["text"])
    return "\n".join(texts)


def _definition(tool: Json) -> dict[str, Any]:
    """Convert a tool to the form that chat templates expect."""
    function = {name: tool[name] for name in ("name", "description", "parameters")}
    return {"type": "function", "function": function}


def from_response(response: Completion, model: str) -> dict[str, Any]:
    """Convert a completion to inspect's ModelOutput."""
    calls = []
    for call in response.tool_calls:
        function = call["function"]
        calls.append(tool_call(function["name"], function["arguments"], call["id"]))
    message = {
        "role": "assistant",
        "content": response.text,
        "source": "generate",
        "model": model,
        "tool_calls": calls or None,
    }
    # inspect runs the tools only if the stop reason says so. A truncated answer keeps its own reason.
    stop = "tool_calls" if calls and response.stop == "end" else STOP_REASONS[response.stop]
    tokens = usage(response.usage.input_tokens, response.usage.output_tokens)
    return {
        "model": model,
        "choices": [{"message": message, "stop_reason": stop}],
        "usage": tokens,
        "time": response.latency_s,
    }


def tool_call(name: str, arguments: Json, id: str) -> dict[str, Any]:
    """Convert a call to inspect's form. If it was malformed, inspect tells the model so and calls no tool."""
    call = {"id": id, "function": name, "arguments": dict(arguments), "type": "function"}
    if MALFORMED in arguments:
        call["parse_error"] = f"the arguments of {name} are no JSON object: {arguments[MALFORMED]}"
    return call


def usage(input_tokens: int, output_tokens: int, cost_usd: float | None = None) -> dict[str, Any]:
    """Return token counts as inspect's ModelUsage."""
    tokens: dict[str, Any] = {
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "total_tokens": input_tokens + output_tokens,
    }
    return tokens if cost_usd is None else {**tokens, "total_cost": cost_usd}
