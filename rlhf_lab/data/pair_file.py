"""Pairs on disk (`data.streaming=true`): a file of one JSON object per line, and where each line begins.

A shuffle buffer would only approximate a random order. A file with offsets has the exact one: a row is looked up where
it is, so an epoch is the same permutation as in memory, the cursor of an interrupted run is its step number, and memory
holds eight bytes a row. The file lies in a temporary folder for as long as the pairs are used.
"""

from __future__ import annotations

import json
import mmap
import shutil
import tempfile
import weakref
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

from rlhf_lab.core.types import Pair


class PairFile(Sequence[Pair]):
    """Pairs that are appended once and read in any order. Values of `meta` have to be JSON; tuples become lists."""

    def __init__(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="rlhf_lab_pairs_"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._file = open(folder / "pairs.jsonl", "w+b")  # noqa: SIM115, closed with the object
        self._offsets = array("q", [0])
        self._bytes: mmap.mmap | None = None

    def append(self, pair: Pair) -> None:
        values = [pair.prompt, pair.chosen, pair.rejected, dict(pair.meta)]
        line = json.dumps(values).encode() + b"\n"
        self._file.write(line)
        self._offsets.append(self._offsets[-1] + len(line))
        self._bytes = None  # what was mapped before does not have this line

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, index: int) -> Pair: ...
    @overload
    def __getitem__(self, index: slice) -> list[Pair]: ...
    def __getitem__(self, index: int | slice) -> Pair | list[Pair]:
        if isinstance(index, slice):
            return [self._read(i) for i in range(*index.indices(len(self)))]
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"pair {index} of {count}")
        return self._read(index % count)

    def __iter__(self) -> Iterator[Pair]:
        return map(self._read, range(len(self)))

    def _read(self, index: int) -> Pair:
        if self._bytes is None:
            self._file.flush()
            self._bytes = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        line = self._bytes[self._offsets[index] : self._offsets[index + 1]]
        return Pair(*json.loads(line))
