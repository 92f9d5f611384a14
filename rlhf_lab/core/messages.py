"""Message of a conversation."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class Message(TypedDict):
    """Message of a conversation in the format of chat templates. All values are JSON values.

    Keys:
        role: system, user, assistant or tool.
        content: text with its original whitespace; "" for an assistant message that only calls tools.
        tool_calls: tool calls of an assistant: [{"type": "function", "function": {name, arguments}}, …], with an `id`
            if a service or a chat template assigns one. Arguments are a mapping.
        name, tool_call_id: for a tool result, the tool's name and the id of the call that it answers.
        blocks: complete answer of an assistant with thoughts next to its calls, exactly as the service returned it.
            That service requires it back unchanged; transcripts and other models ignore it.
    """

    role: str
    content: str
    tool_calls: NotRequired[list[dict[str, Any]]]
    name: NotRequired[str]
    tool_call_id: NotRequired[str]
    blocks: NotRequired[list[dict[str, Any]]]
