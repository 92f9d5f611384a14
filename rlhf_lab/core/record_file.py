"""Records on disk, for data that do not fit in memory: a file of records and the offset of each.

A shuffle buffer would only approximate a random order; a file with offsets gives the exact one. Records are read by
offset, so an epoch is the same permutation as in memory, and the cursor of an interrupted run is its step number.
Memory holds eight bytes per record. The file is in a temporary directory as long as the records are used.
"""

from __future__ import annotations

import mmap
import shutil
import tempfile
import weakref
from abc import abstractmethod
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, TypeVar, overload

from rlhf_lab.core.scratch import scratch_dir

Record = TypeVar("Record")


class RecordFile(Sequence[Record]):
    """Records that are appended once and read in any order. A subclass defines the bytes of a record.

    Class attributes:
        noun: word for a record in messages.
        counts_back: True if a negative index counts from the end; otherwise it raises IndexError.
    """

    noun: ClassVar[str]
    counts_back: ClassVar[bool]

    def __init__(self) -> None:
        # A later process removes `scratch_dir` after a kill; the finalizer frees the disk once the object is unused.
        directory = Path(tempfile.mkdtemp(prefix=f"{self.noun}s-", dir=scratch_dir()))
        weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)
        self._file = open(directory / f"{self.noun}s", "w+b")  # noqa: SIM115, closed with the object
        # One more offset than records: the last is the end of the file.
        self._offsets = array("q", [0])
        self._bytes: mmap.mmap | None = None

    @abstractmethod
    def encode(self, record: Record) -> bytes:
        """Convert a record to the bytes that are stored."""
        ...

    @abstractmethod
    def decode(self, stored: bytes) -> Record:
        """Convert stored bytes back to the record."""
        ...

    def append(self, record: Record) -> None:
        """Append a record to the file."""
        stored = self.encode(record)
        self._file.write(stored)
        self._offsets.append(self._offsets[-1] + len(stored))
        self._bytes = None  # the existing memory map does not contain this record

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        count = len(self)
        if isinstance(index, slice):
            return [self._read(i) for i in range(*index.indices(count))]
        lowest = -count if self.counts_back else 0
        if not lowest <= index < count:
            raise IndexError(f"{self.noun} {index} of {count}")
        return self._read(index % count)

    def __iter__(self) -> Iterator[Record]:
        return map(self._read, range(len(self)))

    def _read(self, index: int) -> Record:
        if self._bytes is None:
            self._file.flush()
            self._bytes = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        return self.decode(self._bytes[self._offsets[index] : self._offsets[index + 1]])
