"""Every file form gives the same rows, and every broken file says what is wrong and what to do."""

import gzip
import json
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from rlhf_lab.core.errors import DataError
from rlhf_lab.data import pairs
from rlhf_lab.data.file_settings import Pairs
from rlhf_lab.data.reading import read_rows
from rlhf_lab.data.rows import SHOWN, BadRows, RowProblem

ROWS = [{"chosen": "α", "rejected": "b"}, {"chosen": "c\nd", "rejected": "e"}]
JSONL = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)


def read(source, limit=0):
    bad = BadRows(str(source), limit)
    rows = list(read_rows(str(source), bad))
    bad.finish()
    return rows


def values(source):
    return [row.values for row in read(source)]


def write(path, content):
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def message(source, limit=0):
    with pytest.raises(DataError) as caught:
        read(source, limit)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", JSONL),
        ("a.jsonl", "\ufeff" + JSONL),
        ("a.jsonl", JSONL.replace("\n", "\r\n\n").rstrip()),
        ("a.jsonl.gz", gzip.compress(("\ufeff" + JSONL).encode(), mtime=0)),
        ("a.json", json.dumps(ROWS, indent=1)),
        ("a.json", JSONL),
        ("a.json.gz", gzip.compress(json.dumps(ROWS).encode(), mtime=0)),
    ],
)
def test_text_forms(tmp_path, name, content):
    assert values(write(tmp_path / name, content)) == ROWS


def test_parquet_folder_and_glob(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "part-1.parquet")
    write(tmp_path / "part-2.jsonl", JSONL)
    write(tmp_path / "notes.txt", "not data")
    assert values(tmp_path / "part-1.parquet") == ROWS
    assert values(tmp_path) == ROWS + ROWS
    assert values(tmp_path / "part-*") == ROWS + ROWS


def test_a_saved_data_set_folder(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "saved"))
    assert values(tmp_path / "saved") == ROWS


def test_missing_file_names_the_one_that_is_meant(tmp_path):
    write(tmp_path / "harmless_test.jsonl.gz", b"")
    assert f"did you mean {tmp_path / 'harmless_test.jsonl.gz'}?" in message(tmp_path / "harmless_tst.jsonl.gz")
    assert f"{tmp_path} has harmless_test.jsonl.gz" in message(tmp_path / "zzz.parquet")
    assert "does not exist either" in message(tmp_path / "no" / "zzz.parquet")


def test_broken_rows_are_listed_together(tmp_path):
    content = b'{"a": 1}\n{"a": 1\n[1, 2]\n{"a": "\xff"}\n'
    text = message(write(tmp_path / "a.jsonl", content))
    assert text.startswith(f"3 rows of {tmp_path / 'a.jsonl'} cannot be read; data.max_bad_rows allows 0:")
    assert "row 2: broken JSON at column 8 (Expecting ',' delimiter)" in text
    assert "row 3: the row is a list [1, 2]; expected an object" in text
    assert "row 4: byte 8 is 0xff, not UTF-8; save the file as UTF-8" in text
    assert text.endswith("skip and count them with data.max_bad_rows=3.")


def test_bad_rows_up_to_the_limit_are_tolerated(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"a": 1}\nx\n{"a": 2}\ny\n')
    assert len(read(path, limit=2)) == 2
    assert "2 rows of" in message(path, limit=1)


def test_reading_stops_when_the_list_is_long_enough(tmp_path):
    text = message(write(tmp_path / "a.jsonl", "[]\n" * 1000), limit=5).replace(str(tmp_path), "")
    assert f"{SHOWN + 5} rows of" in text
    assert "reading stopped there" in text and text.endswith("data.max_bad_rows=N.")
    assert "rows 1–25: the row is a list []" in text
    assert len(text) < 400


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.jsonl.gz", JSONL, "the name ends in .gz, but the content is not gzip; rename it to a.jsonl"),
        ("a.jsonl.gz", gzip.compress(JSONL.encode() * 99, mtime=0)[:-9], "the gzip data is damaged after row"),
        ("a.jsonl", gzip.compress(JSONL.encode(), mtime=0), "is gzip-compressed; rename it to a.jsonl.gz"),
        ("a.jsonl", JSONL.encode("utf-16"), "is UTF-16; convert it: iconv -f UTF-16 -t UTF-8 a.jsonl"),
        ("a.jsonl", "version https://git-lfs.github.com/spec/v1\n", "run: git lfs pull"),
        ("a.json", '[{"a": 1},\n{"a" 2}]', "broken JSON in line 2, column 6"),
        ("a.parquet", "PAR1 no", "cannot be read as Parquet"),
        ("a.csv", "a;b\n1;2\n", "fields of a .csv file are separated by ',', not by ';'"),
        ("a.csv", "a,,b\n", "column 2 of the header has no name"),
        ("a.csv", "a,b,a\n", "the header has 'a' more than once"),
        ("a.txt", "a,b\n", "the format of a.txt is unknown; use one of .jsonl"),
    ],
)
def test_damaged_files(tmp_path, name, content, expected):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    assert expected in message(write(tmp_path / name, content))


def test_a_folder_with_both_splits_is_not_mixed(tmp_path):
    write(tmp_path / "train.jsonl", JSONL)
    write(tmp_path / "test.jsonl", JSONL)
    expected = f"write data.path={tmp_path / 'train.jsonl'} data.test_path={tmp_path / 'test.jsonl'}"
    assert expected in message(tmp_path)


class FakeTable:
    def iter(self, batch_size):
        yield {key: [row[key] for row in ROWS] for key in ROWS[0]}


def test_hub_ids_name_folder_or_configuration_and_split(monkeypatch):
    calls = []

    def load_dataset(name, configuration, *, data_dir, split):
        calls.append((name, configuration, data_dir, split))
        return FakeTable()

    def get_dataset_config_names(name):
        return ["main", "socratic"] if name == "openai/gsm8k" else ["default"]

    fake = SimpleNamespace(load_dataset=load_dataset, get_dataset_config_names=get_dataset_config_names)
    monkeypatch.setitem(sys.modules, "datasets", fake)
    assert values("Anthropic/hh-rlhf/harmless-base:test") == ROWS
    assert values("owner/name") == ROWS
    assert values("owner/name:train[:10%]") == ROWS
    assert values("openai/gsm8k/main:test") == ROWS
    assert calls == [
        ("Anthropic/hh-rlhf", None, "harmless-base", "test"),
        ("owner/name", None, None, "train"),
        ("owner/name", None, None, "train[:10%]"),
        ("openai/gsm8k", "main", None, "test"),
    ]


def test_the_hub_out_of_reach(monkeypatch):
    def load_dataset(name, configuration, *, data_dir, split):
        raise ConnectionError("no route to host\nlong story")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "Unset HF_HUB_OFFLINE to download it once, or save it as a file and write data.path=" in message("a/b")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    text = message("a/b:test")
    assert "(split test) cannot be loaded: no route to host. Check the id" in text
    assert "long story" not in text


CSV = 'chosen,rejected\nα,b\n"c\nd","e"\n'


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", CSV),
        ("a.csv", 'chosen , rejected\r\nα,b\r\n\r\n"c\nd",e'),
        ("a.csv.gz", gzip.compress(CSV.encode(), mtime=0)),
        ("a.tsv", CSV.replace(",", "\t")),
    ],
)
def test_delimited_forms(tmp_path, name, content):
    assert values(write(tmp_path / name, content)) == ROWS


def test_fields_of_a_csv(tmp_path):
    messages = [{"role": "user", "content": "Hi"}]
    quoted = json.dumps(messages).replace('"', '""')
    python = str(messages)
    content = f'odd name,empty,m,p\n"say ""a, b""",,"{quoted}","{python}"\n[1],"",[{{}}],\n'
    first, second = read(write(tmp_path / "a.csv", content))
    assert first.values == {"odd name": 'say "a, b"', "empty": "", "m": messages, "p": messages}
    assert second.values == {"odd name": "[1]", "empty": "", "m": "[{}]", "p": ""}
    assert (first.number, second.number) == (2, 3)
    long = "x" * 200_000
    assert values(write(tmp_path / "b.csv", f"a\n{long}\n")) == [{"a": long}]


def test_messages_that_pandas_wrote(tmp_path):
    """pandas writes arrays, such as those of a Parquet file, without commas; that must not become training data."""
    calls = [{"type": "function", "function": {"name": "add", "arguments": {}}}]
    called = [{"role": "user", "content": "1 + 1"}, {"role": "assistant", "tool_calls": calls}]
    chosen = np.array([{"content": "Hi", "role": "user"}, {"content": "Hello", "role": "assistant"}])
    columns = {"messages": [called], "prompt": ["Hi"], "chosen": [chosen], "rejected": ["Go"]}
    pd.DataFrame(columns).to_csv(tmp_path / "a.csv", index=False)
    [row] = read(tmp_path / "a.csv")  # a column that nobody reads may hold anything
    assert row.values["messages"] == called
    with pytest.raises(RowProblem, match=r"'chosen' is messages that pandas wrote from an array, .*; expected text or"):
        pairs.parse_row(row.values, Pairs(path="a.csv"))


def test_broken_rows_of_a_csv_name_row_and_field(tmp_path):
    content = b'a,b\n1,2,3\n"x\ny",2\n1,\xff\n"1"2,3\n7,8\n"open,9\n'
    text = message(write(tmp_path / "a.csv", content))
    assert text.startswith("4 rows of")
    assert (
        "row 2: the row has 3 fields and the header has 2; put quotes around a field that contains ',' or a line break"
        in text
    )
    assert "row 4: column 'b' contains the byte 0xff, which is not UTF-8" in text
    assert "row 5: the quoting is broken" in text
    assert "row 7: a quoted field that starts in this row is never closed" in text
    assert [row.values for row in read(tmp_path / "a.csv", limit=4)] == [{"a": "x\ny", "b": "2"}, {"a": "7", "b": "8"}]


def test_a_saved_dataset_dict_names_its_splits(tmp_path):
    """The files that `DatasetDict.save_to_disk` writes, of which those with rows are not read."""
    for split in ("train_prefs", "test_prefs", "train_sft"):
        (tmp_path / "saved" / split).mkdir(parents=True)
        write(tmp_path / "saved" / split / "dataset_info.json", "{}")
    directory = tmp_path / "saved"
    write(directory / "dataset_dict.json", json.dumps({"splits": ["train_prefs", "test_prefs", "train_sft"]}))
    text = message(directory)
    assert "is a DatasetDict with the splits test_prefs, train_prefs, train_sft; name a split: write" in text
    assert f"data.path={directory}/train_prefs data.test_path={directory}/test_prefs" in text


LONE = b'{"chosen": "a \\ud83d b", "rejected": "c"}\n{"chosen": "\\ud83d\\ude00", "rejected": "d"}\n'


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv"])
def test_lone_surrogates_are_replaced_and_their_rows_counted(tmp_path, name):
    """Half a character came into the corpus, and the tokenizer ended the training."""
    content, number, expected = LONE, 1, {"chosen": "a \ufffd b", "rejected": "c"}
    if name == "a.csv":
        content, number = b'messages\n"[{""role"": ""user"", ""content"": ""\\ud83d""}]"\n', 2
        expected = {"messages": [{"role": "user", "content": "\ufffd"}]}
    bad = BadRows(name)
    assert next(iter(read_rows(str(write(tmp_path / name, content)), bad))).values == expected
    assert bad.repaired == [(str(tmp_path / name), number)]
    assert bad.count == 0


def test_a_parquet_text_that_is_not_utf8_is_a_bad_row(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    texts = pa.array([b"good", b"b\xff"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    assert "row 2: a text has the byte 0xff, not UTF-8" in message(tmp_path / "a.parquet")
    assert [row.values for row in read(tmp_path / "a.parquet", limit=1)] == [{"text": "good"}]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ('"score": NaN', "column 'score' is nan"),
        ('"score": -Infinity', "column 'score' is -inf"),
        ('"score": 1e400', "column 'score' is inf"),
        ('"turns": [{"grade": 1.5}, {"grade": NaN}]', "column 'turns'[1]['grade'] is nan"),
    ],
)
def test_numbers_that_json_does_not_have(tmp_path, name, written, problem):
    """The second of three rows; with a list and with one object per line. 1e308 and words of a text are fine."""
    rows = [
        '{"text": "NaN and Infinity", "score": 1e308}',
        f'{{"text": "b", {written}}}',
        '{"text": "c", "score": null}',
    ]
    content = "\n".join(rows) if name == "a.jsonl" else f"[{', '.join(rows)}]"
    source = write(tmp_path / name, content)
    text = message(source)
    assert f"row 2: {problem}, which JSON does not have; write null for a missing value" in text
    assert [row.values["text"] for row in read(source, limit=1)] == ["NaN and Infinity", "c"]
