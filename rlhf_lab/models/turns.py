"""A conversation as one token row in which several turns of the assistant are learned."""

from __future__ import annotations

from rlhf_lab.core.messages import Message
from rlhf_lab.data.transcript import render_prompt, reply_message, reply_text, to_conversation
from rlhf_lab.models.encoding import Encoder, Row

MaskedRow = tuple[Row, list[bool]]
"""A row, and which tokens of its reply part are learned."""


def conversation_row(
    encoder: Encoder, prompt: str, reply: str, max_length: int, learn_from: int | None = None
) -> MaskedRow:
    """A prompt and a reply, and in the prompt further turns of the assistant that are learned.

    The row's prompt ends where the first learned turn begins; every learned turn ends as a reply ends (end of turn, or
    EOS in a plain transcript). A row that is too long is cut as any other: the prompt at its beginning, then the rest
    at its end.

    Args:
        learn_from: turns of the assistant from this message on are learned; None learns the reply alone.
    """
    messages, tools = ([], []) if learn_from is None else to_conversation(prompt)
    messages = [*messages, reply_message(reply)]
    learned = [i for i, message in enumerate(messages) if message["role"] == "assistant" and i >= (learn_from or 0)]
    if len(learned) == 1 or not prompt:
        row = encoder.row(prompt, reply, max_length)
        return row, [True] * len(row[1])
    if encoder.chat:
        ids, mask = encoder.chat.turns(messages, tools, learned)
    else:
        ids, mask = _plain_turns(encoder, messages, learned)
    row = encoder.fit(render_prompt(messages[: learned[0]], tools), ids, max_length)
    return row, mask[: len(row[1])]


def _plain_turns(encoder: Encoder, messages: list[Message], learned: list[int]) -> tuple[list[int], list[bool]]:
    """Token ids of a plain transcript from the first learned turn on, and which of them are learned."""
    ids: list[int] = []
    mask: list[bool] = []
    for number, next_number in zip(learned, [*learned[1:], None], strict=True):
        turn = encoder.response(reply_text(messages[number]))
        ids += turn
        mask += [True] * len(turn)
        if next_number is not None:
            between = encoder.continuation(render_prompt(messages[number + 1 : next_number]))
            ids += between
            mask += [False] * len(between)
    return ids, mask
