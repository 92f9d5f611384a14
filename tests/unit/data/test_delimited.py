"""Lines and fields of files: what is read, and what is said of a row or a file that cannot be."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rlhf_lab.data import pairs
from rlhf_lab.data.file_settings import Pairs
from rlhf_lab.data.rows import BadRows, RowProblem
from rlhf_lab.data.text_files import file_lines, read_delimited


def read(path: Path, content: str, limit: int = 0) -> tuple[list[tuple[int, dict]], BadRows]:
    path.write_text(content)
    bad = BadRows(str(path), limit)
    return [(row.number, row.values) for row in read_delimited(path, bad)], bad


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


def test_lines_are_numbered_and_lose_the_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbfone\ntwo\n", mtime=0))
    assert list(file_lines(path)) == [(1, b"one\n"), (2, b"two\n")]
