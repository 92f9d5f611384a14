"""Pairs on disk (`data.streaming=true`), one line of JSON each; see `core/record_file.py`."""

from __future__ import annotations

import json

from rlhf_lab.core.record_file import RecordFile
from rlhf_lab.core.types import Pair


class PairFile(RecordFile[Pair]):
    """File of pairs. Values of `meta` have to be JSON, and tuples become lists."""

    noun = "pair"
    counts_back = True

    def encode(self, record: Pair) -> bytes:
        values = [record.prompt, record.chosen, record.rejected, dict(record.meta)]
        return json.dumps(values).encode() + b"\n"

    def decode(self, stored: bytes) -> Pair:
        return Pair(*json.loads(stored))
