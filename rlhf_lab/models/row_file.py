"""Token rows on disk (`data.streaming=true`), four bytes a token: see `core/record_file.py`."""

from __future__ import annotations

import numpy as np

from rlhf_lab.core.record_file import RecordFile
from rlhf_lab.models.turns import MaskedRow


class RowFile(RecordFile[MaskedRow]):
    """Masked rows as numbers: the length of the prompt, the prompt, the reply.

    A token that is learned is stored as its id, any other token of the reply as −1 − id.
    """

    noun = "row"
    counts_back = False

    def encode(self, record: MaskedRow) -> bytes:
        (prompt, reply), mask = record
        stored_reply = [token if learned else -1 - token for token, learned in zip(reply, mask, strict=True)]
        return np.array([len(prompt), *prompt, *stored_reply], np.int32).tobytes()

    def decode(self, stored: bytes) -> MaskedRow:
        numbers = np.frombuffer(stored, np.int32)
        reply_start = 1 + int(numbers[0])
        prompt, reply = numbers[1:reply_start], numbers[reply_start:]
        mask = reply >= 0
        return (prompt.tolist(), np.where(mask, reply, -1 - reply).tolist()), mask.tolist()
