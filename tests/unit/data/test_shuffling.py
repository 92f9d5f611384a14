"""Streams of hub data: read as far as needed, in an order that a seed decides, through `datasets` as users have it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlhf_lab.config import registry
from rlhf_lab.core.errors import DataError
from rlhf_lab.data.file_settings import GradedData, Pairs
from rlhf_lab.data.loading import shuffled
from rlhf_lab.data.reading import read_rows
from rlhf_lab.data.rows import BadRows, SourceRow

ROWS = [{"prompt": f"what about {i}", "chosen": f"yes {i}", "rejected": f"no {i}"} for i in range(3000)]


def rows(count: int) -> list[SourceRow]:
    return [SourceRow("f", number, {}) for number in range(count)]


def numbers(shuffled_rows: Iterator[SourceRow]) -> list[int]:
    return [row.number for row in shuffled_rows]


def test_every_row_comes_once_and_the_seed_and_the_buffer_decide_the_order() -> None:
    first = numbers(shuffled(rows(200), 20, 0))
    assert sorted(first) == list(range(200)) != first
    assert first == numbers(shuffled(rows(200), 20, 0)) != numbers(shuffled(rows(200), 20, 1))
    assert all(number - position < 20 for position, number in enumerate(first))
    assert numbers(shuffled(rows(50), 1, 3)) == list(range(50))
    assert sorted(numbers(shuffled(rows(50), 1000, 3))) == list(range(50))


def test_no_more_is_read_than_the_buffer_needs() -> None:
    source = iter(rows(1000))
    selected = shuffled(source, 10, 0)
    for _ in range(5):
        next(selected)
    assert next(source).number == 15  # the buffer, and one for each row that was taken


@pytest.fixture(params=["json", "parquet"])
def hub(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let `datasets` stream a local directory for someone/pairs. Return the rows that were read."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    if request.param == "json":
        file = tmp_path / "part-0.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        file = tmp_path / "part-0.parquet"
        pq.write_table(pa.Table.from_pylist(ROWS), file)
    load_dataset = datasets.load_dataset
    read: list[int] = []

    def load(name: str, configuration: None, *, data_dir: None, split: str, streaming: bool = False) -> Any:
        assert name == "someone/pairs"
        table = load_dataset(request.param, data_files={"train": str(file)}, split=split, streaming=streaming)
        return Counted(table, read) if streaming else table

    monkeypatch.setattr(datasets, "load_dataset", load)
    return read


class Counted:
    """A streamed table that counts what is taken from it."""

    def __init__(self, table: Any, read: list[int]):
        self.table, self.read = table, read

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for index, values in enumerate(self.table):
            self.read.append(index)
            yield values


def load(**settings: Any) -> Any:
    return registry.build("data", Pairs(path="someone/pairs:train", **settings))


def test_a_stream_is_read_as_far_as_it_is_needed(hub: list[int]) -> None:
    streamed = load(streaming=True, max_pairs=20)
    assert len(streamed.train) == len(streamed.test) == 20
    assert 20 < len(hub) < 600  # a tenth of the prompts are held-out: about 200 rows fill both splits
    assert streamed.report["all"].rows == len(hub)
    again = load(streaming=True, max_pairs=20)
    assert again.fingerprint == streamed.fingerprint
    stored = load(max_pairs=20)  # through a copy on disk: the same pairs
    assert stored.fingerprint == streamed.fingerprint and list(streamed.train) == list(stored.train)


def test_a_shuffled_stream_follows_from_its_seed(hub: list[int]) -> None:
    def fingerprint(seed: int, buffer: int) -> str:
        return str(load(streaming=True, max_pairs=20, shuffle_buffer=buffer, shuffle_seed=seed).fingerprint)

    assert fingerprint(0, 500) == fingerprint(0, 500)
    assert len({fingerprint(0, 500), fingerprint(1, 500), fingerprint(0, 50), fingerprint(0, 0)}) == 4
    assert len(hub) < 2000 * 5


def test_a_part_of_the_whole_is_no_stream() -> None:
    with pytest.raises(DataError, match=r"someone/pairs:train with data\.max_pairs=N"):
        next(read_rows("someone/pairs:train[:10%]", BadRows("x", 0), streaming=True))


def test_a_stream_that_breaks_off_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")

    def broken() -> Iterator[dict[str, Any]]:
        yield from ROWS[:3]
        raise ConnectionResetError("connection reset by peer")

    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: broken())
    with pytest.raises(DataError, match=r"was interrupted after row 3: connection reset"):
        load(streaming=True)


def test_what_cannot_be_shuffled_is_refused() -> None:
    with pytest.raises(ValueError, match=r"add data\.streaming=true"):
        Pairs(path="a.jsonl", shuffle_buffer=10)
    with pytest.raises(ValueError, match="cannot be shuffled"):
        GradedData(path="a.jsonl", streaming=True, shuffle_buffer=10)
