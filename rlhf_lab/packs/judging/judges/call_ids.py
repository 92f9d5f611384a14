"""Ids of tool calls. Services require an id for every call, and every result names the id of its call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import call_id


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
