"""Which result of a tool belongs to which call: services want every call to have an id that its result names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import call_id


def calls_before(messages: Sequence[Message]) -> int:
    """Calls that a conversation has so far: the number of its next one."""
    return sum(len(message.get("tool_calls") or ()) for message in messages)


def with_call_ids(messages: Sequence[Message]) -> Iterator[Message]:
    """The messages with the ids that are missing, as in a conversation that a person wrote or a chat template made.

    Calls get their number in the conversation; results without an id answer the calls before them, in order.
    """
    number = 0
    waiting: list[str] = []  # ids of calls whose result has not come
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
            id = message.get("tool_call_id") or next(iter(waiting), call_id(number))
            if id in waiting:
                waiting.remove(id)
            message = {**message, "tool_call_id": id}
        yield message
