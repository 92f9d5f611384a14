"""Token rows on disk (`data.streaming=true`), four bytes per token: see `core/record_file.py`."""

from __future__ import annotations

import numpy as np

from rlhf_lab.core.record_file import RecordFile
from rlhf_lab.models.turns import MaskedRow


class RowFile(RecordFile[MaskedRow]):
    """Masked rows as 32-bit integers: the length of the prompt, the prompt, the response.

    A response token in the loss is stored as its id, any other response token as −1 − id.
    """

    noun = "row"
    counts_back = False

    def encode(self, record: MaskedRow) -> bytes:
        (prompt, response), mask = record
        stored_response = []
        for token, learned in zip(response, mask, strict=True):
            stored_response.append(token if learned else -1 - token)
        numbers = [len(prompt), *prompt, *stored_response]
        return np.array(numbers, np.int32).tobytes()

    def decode(self, stored: bytes) -> MaskedRow:
        numbers = np.frombuffer(stored, np.int32)
        response_start = 1 + int(numbers[0])
        prompt = numbers[1:response_start]
        response = numbers[response_start:]
        mask = response >= 0
        # a token id outside the loss is stored as −1 − id, so that id 0 has a sign as well
        response_ids = np.where(mask, response, -1 - response)
        return (prompt.tolist(), response_ids.tolist()), mask.tolist()
