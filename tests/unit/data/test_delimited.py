"""Lines and fields of files: what is read, and what is said of a row or a file that cannot be."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rlhf_lab.core.errors import DataError
from rlhf_lab.data import pairs
from rlhf_lab.data.delimited import read_delimited
from rlhf_lab.data.file_settings import Pairs
from rlhf_lab.data.lines import file_lines
from rlhf_lab.data.rows import BadRows, RowProblem


def read(path: Path, content: str, limit: int = 0) -> tuple[list[tuple[int, dict]], BadRows]:
    path.write_text(content)
    bad = BadRows(str(path), limit)
    return [(row.number, row.values) for row in read_delimited(path, bad)], bad


def test_rows_are_numbered_as_a_spreadsheet_numbers_them(tmp_path: Path) -> None:
    rows, _ = read(tmp_path / "a.csv", 'prompt, chosen\nQ,"two\nlines, quoted"\n\nR,""\n')
    assert rows == [(2, {"prompt": "Q", "chosen": "two\nlines, quoted"}), (4, {"prompt": "R", "chosen": ""})]


def test_messages_are_read_from_what_pandas_writes(tmp_path: Path) -> None:
    rows, _ = read(tmp_path / "a.tsv", "prompt\n[{'role': 'user', 'content': \"it's\"}]\n")
    assert rows == [(2, {"prompt": [{"role": "user", "content": "it's"}]})]


def test_a_call_without_content_is_a_message(tmp_path: Path) -> None:
    calls = [{"type": "function", "function": {"name": "add", "arguments": {}}}]
    messages = [{"role": "user", "content": "1 + 1"}, {"role": "assistant", "tool_calls": calls}]
    pd.DataFrame({"messages": [messages]}).to_csv(tmp_path / "a.csv", index=False)
    rows, _ = read(tmp_path / "a.csv", (tmp_path / "a.csv").read_text())
    assert rows == [(2, {"messages": messages})]


def test_messages_that_pandas_wrote_from_an_array_are_a_problem_of_the_row(tmp_path: Path) -> None:
    """A Parquet file gives arrays, and pandas writes arrays without commas. Such text must not become training data."""
    chosen = np.array([{"content": "Hi", "role": "user"}, {"content": "Hello", "role": "assistant"}])
    pd.DataFrame({"prompt": ["Hi"], "chosen": [chosen], "rejected": ["Go"]}).to_csv(tmp_path / "a.csv", index=False)
    [(_, values)], bad = read(tmp_path / "a.csv", (tmp_path / "a.csv").read_text())
    assert bad.count == 0  # a column that nobody reads may hold anything
    with pytest.raises(RowProblem) as error:
        pairs.parse_row(values, Pairs(path="a.csv"))
    assert str(error.value) == (
        "column 'chosen' is messages that pandas wrote from an array, without commas between them (save the table as "
        ".parquet or .jsonl, or apply list() to the column before to_csv); expected text or a list of {role, content} "
        "messages"
    )


def test_brackets_that_are_no_messages_stay_text(tmp_path: Path) -> None:
    fields = ["[{'role': 'user'}]", "[{x: 1} {role: 2}]", '[{"role": name}, {"role": other}']
    rows, _ = read(tmp_path / "a.tsv", "text\n" + "\n".join(fields) + "\n")
    assert [values["text"] for _, values in rows] == fields


def test_a_row_with_too_few_fields_is_counted_and_skipped(tmp_path: Path) -> None:
    rows, bad = read(tmp_path / "a.csv", "a,b\n1\n2,3\n", limit=1)
    assert rows == [(3, {"a": "2", "b": "3"})]
    assert bad.rows() == [(str(tmp_path / "a.csv"), 2)]


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("a;b", "separated by ',', not by ';'"),
        ("a,,b", "column 2 of the header has no name"),
        ("a,a", "more than once"),
    ],
)
def test_a_header_that_names_no_columns(tmp_path: Path, header: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        read(tmp_path / "a.csv", f"{header}\n1,2\n")


def test_lines_are_numbered_and_lose_the_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbfone\ntwo\n", mtime=0))
    assert list(file_lines(path)) == [(1, b"one\n"), (2, b"two\n")]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", gzip.compress(b"{}", mtime=0), "is gzip-compressed; rename it to a.jsonl.gz"),
        ("a.jsonl", "{}".encode("utf-16"), "is UTF-16"),
        ("a.jsonl.gz", b"{}\n", "the name ends in .gz, but the content is not gzip"),
        ("a.jsonl.gz", gzip.compress(b"one\n" * 9999, mtime=0)[:-9], "damaged after row"),
    ],
)
def test_a_file_that_is_something_else(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=said):
        list(file_lines(tmp_path / name))
