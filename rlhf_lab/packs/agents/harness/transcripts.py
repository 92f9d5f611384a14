"""What an agent did as rows to learn from: conversations in which its own turns are learned, and nothing else.

A trajectory is one conversation, or several: parts of an agent have a conversation each, and an agent that keeps notes
begins a new one with every turn. A row has the columns that `data=sft` reads: `prompt`, messages that are read;
`completion`, what follows, of which the assistant's messages are learned and what tools and users say is not; `tools`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import function_call
from rlhf_lab.data.transcript import Conversation, to_conversation
from rlhf_lab.packs.agents.trajectory import AgentTrajectory, Turn


def training_rows(trajectory: AgentTrajectory) -> list[dict[str, Any]]:
    """The conversations of a trajectory, in the order in which they begin; `part` says who speaks in each."""
    rows = []
    for turns in conversations(trajectory.turns):
        first, last = to_conversation(turns[0].prompt), to_conversation(turns[-1].prompt)
        begin = len(first.messages)
        completion = [*last.messages[begin:], _said(turns[-1], last)]
        rows.append({"prompt": first.messages, "completion": completion, "tools": last.tools, "part": turns[0].agent})
    return rows


def conversations(turns: Sequence[Turn]) -> list[list[Turn]]:
    """Turns that go on one from the other, together."""
    groups: list[list[Turn]] = []
    for turn in turns:
        earlier = next((group for group in reversed(groups) if _goes_on(group[-1], turn)), None)
        if earlier is None:
            groups.append([turn])
        else:
            earlier.append(turn)
    return groups


def _goes_on(turn: Turn, later: Turn) -> bool:
    """Whether the later turn was said behind this one: its prompt begins with this one's, and then has what it said."""
    if turn.agent != later.agent:
        return False
    before, after = to_conversation(turn.prompt).messages, to_conversation(later.prompt).messages
    said = len(before)
    return after[:said] == before and len(after) > said and after[said]["content"] == turn.text


def _said(turn: Turn, conversation: Conversation) -> Message:
    """The message of a turn, with its calls where the model made them in its own form."""
    message = Message(role="assistant", content=turn.text)
    if conversation.tools and turn.calls:
        message["tool_calls"] = [function_call(call.name, call.arguments, call.id) for call in turn.calls]
    return message
