"""A record file reads like a list, and its folder goes with it."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from rlhf_lab.core.record_file import RecordFile
from rlhf_lab.core.types import Pair
from rlhf_lab.data.loading import PairFile
from rlhf_lab.models.turns import RowFile


class Lines(RecordFile[str]):
    noun = "line"
    counts_back = True

    def encode(self, record: str) -> bytes:
        return record.encode()

    def decode(self, stored: bytes) -> str:
        return stored.decode()


class Forward(Lines):
    counts_back = False


def filled(file: Lines) -> Lines:
    for text in ("a", "", "ünf"):
        file.append(text)
    return file


def test_records_are_read_in_any_order_and_between_appends():
    file = filled(Lines())
    assert list(file) == ["a", "", "ünf"] and (file[2], file[0], file[1]) == ("ünf", "a", "")
    file.append("later")
    assert file[3] == "later" and file[1:] == ["", "ünf", "later"] and len(file) == 4


def test_a_negative_index_counts_from_the_end_only_where_the_class_says_so():
    file = filled(Lines())
    assert (file[-1], file[-3]) == ("ünf", "a")
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"line {index} of 3"):
            file[index]
    with pytest.raises(IndexError, match="line -1 of 3"):
        filled(Forward())[-1]


def test_the_folder_is_removed_with_the_object():
    file = filled(Lines())
    directory = Path(file._file.name).parent
    assert directory.is_dir() and directory.name.startswith("lines-")
    del file
    gc.collect()
    assert not directory.exists()


PAIRS = [Pair(f"p{i} \u2028 ü", f"chosen\n{i}", "", {"n": i}) for i in range(3)]
ROWS = [(([1, 2], [3, 4]), [True, False]), (([], [0, 70_000]), [False, True]), (([5], []), [])]


@pytest.mark.parametrize(("kind", "records"), [(PairFile, PAIRS), (RowFile, ROWS)], ids=["pairs", "rows"])
def test_pairs_and_rows_on_disk_are_those_that_were_put_there(kind, records):
    file = kind()
    for record in records:
        file.append(record)
    assert list(file) == records and file[1] == records[1] and file[::2] == records[::2]
    file.append(records[0])
    assert file[3] == records[0] and len(file) == 4
