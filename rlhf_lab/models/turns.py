"""A conversation as one token row in which several turns of the assistant are learned."""

from __future__ import annotations

import numpy as np

from rlhf_lab.core.messages import Message
from rlhf_lab.core.record_file import RecordFile
from rlhf_lab.data.transcript import render_prompt, response_message, response_text, to_conversation
from rlhf_lab.models.encoding import Encoder, Row

MaskedRow = tuple[Row, list[bool]]
"""A row, and for each response token True if it is in the loss."""


def conversation_row(
    encoder: Encoder, prompt: str, response: str, max_length: int, learn_from: int | None = None
) -> MaskedRow:
    """Encode a prompt and a response, with earlier assistant turns of the prompt in the loss, except for empty ones.

    The row's prompt ends where the first learned turn starts. Every learned turn ends like a response, with the end of
    turn or, without a chat template, with EOS. A row that is too long is truncated like any other: first the prompt at
    its start, then the rest at its end.

    Args:
        learn_from: index of the first message whose assistant turns are learned; None learns only the response.
    """
    messages, tools = ([], []) if learn_from is None else to_conversation(prompt)
    messages = [*messages, response_message(response)]
    first = learn_from or 0
    spoken = [i for i, message in enumerate(messages) if message["role"] == "assistant" and i >= first]
    # an empty turn within a conversation would teach the model to say nothing
    learned = [i for i in spoken[:-1] if response_text(messages[i]).strip()] + spoken[-1:]
    # without earlier learned turns the row is an ordinary prompt with its response
    if len(learned) == 1 or not prompt:
        row = encoder.row(prompt, response, max_length)
        return row, [True] * len(row[1])
    if encoder.chat:
        ids, mask = encoder.chat.turns(messages, tools, learned)
    else:
        ids, mask = _text_turns(encoder, messages, learned)
    row = encoder.fit(render_prompt(messages[: learned[0]], tools), ids, max_length)
    return row, mask[: len(row[1])]


def _text_turns(encoder: Encoder, messages: list[Message], learned: list[int]) -> tuple[list[int], list[bool]]:
    """Return token ids without a chat template from the first learned turn on, and their mask (True: in the loss)."""
    ids: list[int] = []
    mask: list[bool] = []
    for number, next_number in zip(learned, [*learned[1:], None], strict=True):
        # each learned turn ends with EOS; the text between two of them is only read
        turn = encoder.response(response_text(messages[number]))
        ids += turn
        mask += [True] * len(turn)
        if next_number is not None:
            between = encoder.continuation(render_prompt(messages[number + 1 : next_number]))
            ids += between
            mask += [False] * len(between)
    return ids, mask


class RowFile(RecordFile[MaskedRow]):
    """Masked rows as 32-bit integers: the length of the prompt, the prompt, the response.

    A response token in the loss is stored as its id, any other response token as −1 − id.
    """

    noun = "row"
    counts_back = False

    def encode(self, record: MaskedRow) -> bytes:
        (prompt, response), mask = record
        stored_response = [token if learned else -1 - token for token, learned in zip(response, mask, strict=True)]
        return np.array([len(prompt), *prompt, *stored_response], np.int32).tobytes()

    def decode(self, stored: bytes) -> MaskedRow:
        numbers = np.frombuffer(stored, np.int32)
        response_start = 1 + int(numbers[0])
        prompt = numbers[1:response_start]
        response = numbers[response_start:]
        mask = response >= 0
        # a token id outside the loss is stored as −1 − id, so that id 0 has a sign as well
        return (prompt.tolist(), np.where(mask, response, -1 - response).tolist()), mask.tolist()
