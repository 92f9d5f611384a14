"""Token rows on disk, for data that do not fit in memory: see `data/pair_file.py`."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import overload

import numpy as np

from rlhf_lab.models.turns import MaskedRow


class RowFile(Sequence[MaskedRow]):
    """Masked rows that are appended once and read in any order: four bytes a token on disk, 16 a row in memory.

    A token that is learned is stored as its id, any other token of the reply as −1 − id.
    """

    def __init__(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="rlhf_lab_rows_"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._path = folder / "rows.int32"
        self._file = open(self._path, "wb")  # noqa: SIM115, closed with the object
        self._offsets = array("q", [0])
        self._prompt_lengths = array("q")
        self._ids: np.ndarray | None = None

    def append(self, masked: MaskedRow) -> None:
        (prompt, reply), mask = masked
        stored_reply = [token if learned else -1 - token for token, learned in zip(reply, mask, strict=True)]
        self._file.write(np.array([*prompt, *stored_reply], np.int32).tobytes())
        self._offsets.append(self._offsets[-1] + len(prompt) + len(reply))
        self._prompt_lengths.append(len(prompt))
        self._ids = None  # what was mapped before does not have this row

    def __len__(self) -> int:
        return len(self._prompt_lengths)

    @overload
    def __getitem__(self, index: int) -> MaskedRow: ...
    @overload
    def __getitem__(self, index: slice) -> list[MaskedRow]: ...
    def __getitem__(self, index: int | slice) -> MaskedRow | list[MaskedRow]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        if self._ids is None:
            self._file.flush()
            self._ids = np.memmap(self._path, np.int32, "r")
        ids = self._ids[self._offsets[index] : self._offsets[index + 1]]
        prompt_length = self._prompt_lengths[index]
        reply = ids[prompt_length:]
        mask = reply >= 0
        return (ids[:prompt_length].tolist(), np.where(mask, reply, -1 - reply).tolist()), mask.tolist()
