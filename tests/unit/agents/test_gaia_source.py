"""Reading the official set: a copy of the repository, and the hub with a stand-in for its client."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlhf_lab.core.errors import DataError
from rlhf_lab.packs.agents.gaia.questions import GaiaQuestion
from rlhf_lab.packs.agents.gaia.rows import gaia_attachment, read_gaia


def row(number: int = 1, **values: Any) -> dict[str, Any]:
    return {
        "task_id": f"id-{number}",
        "Question": f"What is {number}?",
        "Level": "2",
        "Final answer": str(number),
        "file_name": "",
        "file_path": "",
        "Annotator Metadata": {"Steps": "1. Look.", "Number of steps": "1"},
        **values,
    }


def write(directory: Path, rows: list[dict[str, Any]], name: str = "metadata.jsonl") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / name
    file.write_text("".join(json.dumps(values) + "\n" for values in rows), encoding="utf-8")
    return file


def test_a_copy_of_the_repository(tmp_path: Path) -> None:
    directory = tmp_path / "2023" / "validation"
    attachment = row(2, file_name="a.xlsx", file_path="2023/validation/a.xlsx")
    write(directory, [row(1, Level=1, **{"Final answer": 1}), attachment])
    (directory / "a.xlsx").write_bytes(b"sheet")
    simple, attached = read_gaia(str(tmp_path))
    assert simple == GaiaQuestion("id-1", "What is 1?", 1, "1")
    assert attached.level == 2 and attached.files == {"a.xlsx": "a.xlsx"}
    assert gaia_attachment(str(tmp_path), "validation", "a.xlsx").read_bytes() == b"sheet"
    for source in (directory, directory / "metadata.jsonl"):
        assert [question.id for question in read_gaia(str(source))] == ["id-1", "id-2"]


def test_the_newer_layout_is_parquet(tmp_path: Path) -> None:
    directory = tmp_path / "2023" / "test"
    directory.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist([row(1), row(2, **{"Final answer": "?"})]), directory / "metadata.parquet")
    questions = read_gaia(str(tmp_path), "test")
    assert [(question.level, question.answer) for question in questions] == [(2, "1"), (2, None)]
    with pytest.raises(DataError, match=r"has none of metadata\.parquet, .*2023/validation/metadata\.jsonl"):
        read_gaia(str(tmp_path), "validation")


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"Level": 4}, "column 'Level' is a number 4; expected 1, 2 or 3"),
        ({"Question": None}, "column 'Question' is null; expected text"),
        ({"Final answer": " "}, "column 'Final answer' is text ' '; expected text, or '?' for a secret answer"),
        ({"task_id": "id-1"}, "task_id 'id-1' occurs twice"),
        ({"task_id": "../../x"}, "column 'task_id' is text '../../x'; expected a simple name"),
        ({"file_name": "a.txt"}, "a.txt is not in "),
        ({"file_name": "../secret.txt"}, "expected a file name without a directory"),
        ({"file_name": "..\\secret.txt"}, "expected a file name without a directory"),
        ({"file_name": 7}, "column 'file_name' is a number 7"),
    ],
)
def test_bad_rows_are_named(values: dict[str, Any], problem: str, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("x")
    file = write(tmp_path / "copy", [row(1), row(2, **values)])
    with pytest.raises(DataError) as error:
        read_gaia(str(file))
    assert "row 2" in str(error.value) and problem in str(error.value)


def test_what_lacks_rows_or_columns_is_named(tmp_path: Path) -> None:
    values = row(1)
    del values["Final answer"]
    with pytest.raises(DataError, match="row 1: column 'Final answer' is missing"):
        read_gaia(str(write(tmp_path, [values])))
    with pytest.raises(DataError, match="is no file, no directory and no hub id"):
        read_gaia(str(tmp_path / "none"))
    with pytest.raises(DataError, match="no questions"):
        read_gaia(str(write(tmp_path, [])))


class Hub:
    """Stands in for `datasets` and `huggingface_hub`."""

    def __init__(self, rows: list[dict[str, Any]], files: dict[str, Path]):
        self.rows, self.files = rows, files
        self.asked: list[tuple[Any, ...]] = []

    def get_dataset_config_names(self, name: str) -> list[str]:
        return ["2023_all", "2023_level1"]

    def load_dataset(self, name: str, configuration: str, data_dir: str | None, split: str) -> Any:
        self.asked.append((name, configuration, split))
        columns = {key: [values[key] for values in self.rows] for key in self.rows[0]}
        return SimpleNamespace(iter=lambda batch_size: [columns])

    def hf_hub_download(self, name: str, location: str, *, repo_type: str) -> str:
        self.asked.append((name, location, repo_type))
        if location not in self.files:
            raise PermissionError("403: gated repository")
        return str(self.files[location])


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    (tmp_path / "blob").write_text("x")
    rows = [row(1), row(2, file_name="a.txt", file_path="2023/test/a.txt"), row(3, file_name="b.txt")]
    stub = Hub(rows, {"2023/test/a.txt": tmp_path / "blob"})
    monkeypatch.setitem(sys.modules, "datasets", stub)
    monkeypatch.setitem(sys.modules, "huggingface_hub", stub)
    return stub


def test_the_hub(hub: Hub) -> None:
    questions = read_gaia("gaia-benchmark/GAIA", "test")
    assert hub.asked == [("gaia-benchmark/GAIA", "2023_all", "test")]
    files = [dict(question.files) for question in questions]
    assert files == [{}, {"a.txt": "2023/test/a.txt"}, {"b.txt": "2023/test/b.txt"}]
    assert gaia_attachment("gaia-benchmark/GAIA", "test", "2023/test/a.txt").read_text() == "x"
    assert hub.asked[-1] == ("gaia-benchmark/GAIA", "2023/test/a.txt", "dataset")
    read_gaia("gaia-benchmark/GAIA/2023_level1:validation", "test")
    assert hub.asked[-1] == ("gaia-benchmark/GAIA", "2023_level1", "validation")


def test_a_gated_attachment_says_what_to_do(hub: Hub) -> None:
    with pytest.raises(DataError, match=r"2023/test/b\.txt cannot be downloaded: 403.*set HF_TOKEN"):
        gaia_attachment("gaia-benchmark/GAIA", "test", "2023/test/b.txt")


@pytest.mark.parametrize(
    "path", ["../../a.txt", "/etc/a.txt", "2023/test/b.txt", "2023\\..\\a.txt", "2023/../a.txt", ".", 7]
)
def test_a_path_of_the_hub_stays_in_the_repository(path: object, hub: Hub) -> None:
    hub.rows = [row(1, file_name="a.txt", file_path=path)]
    with pytest.raises(DataError, match=r"expected a path in the repository to a\.txt"):
        read_gaia("gaia-benchmark/GAIA", "test")
