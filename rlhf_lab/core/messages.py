"""One message of a conversation."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class Message(TypedDict):
    """One message of a conversation, as chat templates take it; JSON all the way down.

    Keys:
        role: system, user, assistant or tool.
        content: what was said, with its spaces; "" for an assistant that only calls tools.
        tool_calls: the tools that an assistant calls: [{"type": "function", "function": {name, arguments}}, …], with
            an `id` where a service or a chat template numbers them. Arguments are a mapping.
        name, tool_call_id: of a tool's result: the tool, and the call that it answers.
        blocks: of an assistant's answer with thoughts beside its calls: all of it as the service gave it, which that
            service wants back unchanged. Transcripts and other models do without.
    """

    role: str
    content: str
    tool_calls: NotRequired[list[dict[str, Any]]]
    name: NotRequired[str]
    tool_call_id: NotRequired[str]
    blocks: NotRequired[list[dict[str, Any]]]
