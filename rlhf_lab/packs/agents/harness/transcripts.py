"""Training rows from trajectories: conversations in which only the agent's own turns are trained on.

A trajectory contains one or several conversations: each part of an agent has its own, and an agent with notes starts a
new one with every turn. A row has the columns that `data=sft` reads. `prompt` contains the messages before the first
turn. `completion` contains the following messages; only assistant messages are trained on, not messages of tools and
users. `tools` contains the tools' definitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import function_call
from rlhf_lab.data.transcript import Conversation, to_conversation
from rlhf_lab.packs.agents.trajectory import AgentTrajectory, ModelTurn


def training_rows(trajectory: AgentTrajectory) -> list[dict[str, Any]]:
    """Return one row per conversation of a trajectory, ordered by its first turn. The column `part` names the part of
    the agent that had the conversation.
    """
    rows = []
    for turns in conversations(trajectory.turns):
        first = to_conversation(turns[0].prompt)
        last = to_conversation(turns[-1].prompt)
        # The prompt of the last turn contains the entire conversation but for that turn's own output.
        start = len(first.messages)
        completion = [*last.messages[start:], _text_of(turns[-1], last)]
        row = {"prompt": first.messages, "completion": completion, "tools": last.tools, "part": turns[0].agent}
        rows.append(row)
    return rows


def conversations(turns: Sequence[ModelTurn]) -> list[list[ModelTurn]]:
    """Group turns that continue the same conversation."""
    groups: list[list[ModelTurn]] = []
    for turn in turns:
        # The most recent conversation is checked first, because parts may have had equal conversations before.
        for group in reversed(groups):
            if _continues(group[-1], turn):
                group.append(turn)
                break
        else:
            groups.append([turn])
    return groups


def _continues(turn: ModelTurn, later: ModelTurn) -> bool:
    """Return True if a turn continues an earlier one: its prompt is the earlier prompt followed by its output."""
    if turn.agent != later.agent:
        return False
    before = to_conversation(turn.prompt).messages
    after = to_conversation(later.prompt).messages
    output = len(before)  # index of the earlier output in the later prompt
    if after[:output] != before or len(after) <= output:
        return False
    return after[output]["content"] == turn.text


def _text_of(turn: ModelTurn, conversation: Conversation) -> Message:
    """Return the message of a turn, with its calls if the model called tools natively."""
    message = Message(role="assistant", content=turn.text)
    if conversation.tools and turn.calls:
        message["tool_calls"] = [function_call(call.name, call.arguments, call.id) for call in turn.calls]
    return message
