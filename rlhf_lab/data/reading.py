"""Rows of files: .jsonl, .json, .csv, .tsv, each also as .gz, .parquet, a folder or glob of these, a folder that
`datasets` saved, or a data set of the hub.

Rows are streamed. A row that cannot be read does not stop the reading at once: problems are collected by `BadRows`
and reported together, grouped by what is wrong. A file that cannot be read at all is a `DataError` straight away.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from rlhf_lab.core.errors import OPTIONAL, DataError, MissingDependency
from rlhf_lab.core.files import parse_json
from rlhf_lab.data.delimited import read_delimited
from rlhf_lab.data.lines import file_lines
from rlhf_lab.data.rows import BadRows, Row, describe, not_an_object

SUFFIXES = (
    *(".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet"),
    *(".csv", ".csv.gz", ".tsv", ".tsv.gz"),
)
HUB_ID = re.compile(r"(?P<id>[\w.-]+(/[\w.-]+)?)(/(?P<folder>[\w./-]+))?(:(?P<split>[\w.\[\]%:-]+))?")


def read_rows(source: str, bad: BadRows, *, streaming: bool = False) -> Iterator[Row]:
    """Stream the rows of a file, folder, glob or hub data set.

    Args:
        source: a path; or a hub data set as `owner/name`, `owner/name:split`, `owner/name/folder:split` (split: train).
            A configuration that the data set declares is named like a folder: `openai/gsm8k/main`.
        bad: receives rows that are not JSON objects.
        streaming: read a hub data set as it arrives instead of storing it first.
    Raises:
        DataError: nothing is there, or a file is damaged.
    """
    folder = Path(source).expanduser()
    if (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file():
        yield from _table_rows(source, _import_datasets().load_from_disk(str(folder)))
        return
    files = local_files(source)
    if files is None:
        yield from _read_hub(source, streaming)
        return
    for file in files:
        suffix = Path(file.stem).suffix if file.suffix == ".gz" else file.suffix
        reader = READERS[suffix]
        yield from reader(file, bad)


def local_files(source: str) -> list[Path] | None:
    """Files behind a source, sorted; None when it can only be a hub id. Raises DataError when a file is missing."""
    path = Path(source).expanduser()
    if path.is_file():
        if not path.name.endswith(SUFFIXES):
            raise DataError(f"{source}: the form of {path.name} is unknown; use one of {', '.join(SUFFIXES)}")
        return [path]
    if path.is_dir():
        _refuse_dataset_dict(path)
        return _folder_files(path)
    if glob.has_magic(source) and not HUB_ID.fullmatch(source):
        files = sorted(Path(name) for name in glob.glob(str(path)) if name.endswith(SUFFIXES))
        if not files:
            raise DataError(f"{source}: no {', '.join(SUFFIXES)} file matches this pattern{_missing_file_hint(path)}")
        return files
    looks_local = source.startswith((".", "/", "~", os.sep)) or source.endswith(SUFFIXES)
    if looks_local or not HUB_ID.fullmatch(source):
        raise DataError(f"{source}: there is no such file or folder{_missing_file_hint(path)}")
    return None


def _refuse_dataset_dict(folder: Path) -> None:
    """Raises DataError for a folder in which `datasets` saved several splits: it has to be known which is read."""
    if not (folder / "dataset_dict.json").is_file():
        return
    splits = sorted(file.parent.name for file in folder.glob("*/dataset_info.json"))
    train = next((name for name in splits if name.startswith("train")), None)
    test = next((name for name in splits if name.startswith(("test", "eval", "valid"))), None)
    chosen = f"data.path={folder / (train or (splits[0] if splits else 'SPLIT'))}"
    if train and test:
        chosen += f" data.test_path={folder / test}"
    listed = ", ".join(splits) or "none"
    raise DataError(f"{folder}: the folder is a DatasetDict with the splits {listed}; name a split: write {chosen}")


def _folder_files(folder: Path) -> list[Path]:
    files = sorted(file for file in folder.iterdir() if file.name.endswith(SUFFIXES))
    if not files:
        raise DataError(f"{folder}: the folder has no {', '.join(SUFFIXES)} file")
    train = [file.name for file in files if file.name.startswith("train")]
    test = [file.name for file in files if file.name.startswith(("test", "eval", "valid"))]
    if train and test:
        raise DataError(
            f"{folder}: the folder holds both {train[0]} and {test[0]}, which would be mixed; "
            f"write data.path={folder / train[0]} data.test_path={folder / test[0]}"
        )
    return files


def _data_names(folder: Path) -> list[str]:
    """Data files and folders in a folder, sorted."""
    return sorted(file.name for file in folder.iterdir() if file.is_dir() or file.name.endswith(SUFFIXES))


def _similar_names_hint(path: Path) -> str:
    """A question whether one of the similarly named files beside `path` is meant; "" when there is none."""
    names = _data_names(path.parent) if path.parent.is_dir() else []
    close = get_close_matches(path.name, names, n=2, cutoff=0.6)
    if not close:
        return ""
    candidates = " or ".join(str(path.parent / name) for name in close)
    return f" (did you mean {candidates}?)"


def _missing_file_hint(path: Path) -> str:
    """The part of a "missing file" message that says what is there instead."""
    if not path.parent.is_dir():
        return f"; the folder {path.parent} does not exist either"
    names = _data_names(path.parent)
    listed = "no data file"
    if names:
        listed = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
    return _similar_names_hint(path) or f"; {path.parent} has {listed}"


def _read_jsonl(file: Path, bad: BadRows) -> Iterator[Row]:
    for number, line in file_lines(file):
        line = line.rstrip()
        if not line:
            continue
        try:
            values = parse_json(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            byte = line[error.start]
            bad.add(str(file), number, f"byte {error.start + 1} is 0x{byte:02x}, not UTF-8; save the file as UTF-8")
            continue
        except json.JSONDecodeError as error:
            bad.add(str(file), number, _json_problem(line.decode("utf-8"), error))
            continue
        except ValueError as error:
            bad.add(str(file), number, str(error))
            continue
        if isinstance(values, dict):
            yield Row(str(file), number, values)
        else:
            bad.add(str(file), number, not_an_object(values))


def _json_problem(text: str, error: json.JSONDecodeError) -> str:
    excerpt = text[max(0, error.pos - 20) : error.pos + 20].strip()
    return f"broken JSON at column {error.colno} ({error.msg}) near {excerpt!r}; expected one JSON object per line"


def _read_json(file: Path, bad: BadRows) -> Iterator[Row]:
    """A .json file is one list of objects; a file of one object per line is read as JSONL."""
    content = b"".join(line for _, line in file_lines(file))
    try:
        rows = parse_json(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: byte {error.start + 1} is not UTF-8; save the file as UTF-8") from error
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":  # the first line is a whole JSON value, and more follows
            yield from _read_jsonl(file, bad)
            return
        raise DataError(
            f"{file}: broken JSON in line {error.lineno}, column {error.colno} ({error.msg}); "
            "expected a list of objects, or one object per line"
        ) from error
    except ValueError as error:
        raise DataError(f"{file}: {error}; expected a list of objects, or one object per line") from error
    if isinstance(rows, dict):
        rows = [rows]
    if not isinstance(rows, list):
        raise DataError(f"{file}: the file holds {describe(rows)}; expected a list of objects")
    for number, values in enumerate(rows, start=1):
        if isinstance(values, dict):
            yield Row(str(file), number, values)
        else:
            bad.add(str(file), number, not_an_object(values))


def _read_parquet(file: Path, bad: BadRows) -> Iterator[Row]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingDependency(*OPTIONAL["pyarrow"]) from None
    number = 0
    try:
        with pq.ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=1024):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(str(file), number, values)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{file}: not readable as Parquet after row {number} ({error}); fetch the file again"
        ) from error


def _import_datasets() -> Any:
    try:
        import datasets
    except ImportError:
        raise MissingDependency(*OPTIONAL["datasets"]) from None
    return datasets


def _table_rows(source: str, table: Any) -> Iterator[Row]:
    """Rows of a `datasets.Dataset`."""
    number = 0
    for batch in table.iter(batch_size=1024):  # a batch is {column: [value]}
        for values in zip(*batch.values(), strict=True):
            number += 1
            yield Row(source, number, dict(zip(batch, values, strict=True)))


def _read_hub(source: str, streaming: bool) -> Iterator[Row]:
    match = HUB_ID.fullmatch(source)
    assert match is not None, f"{source} is not a hub id"
    split = match["split"] or "train"
    if streaming and "[" in split:
        name = split.partition("[")[0]
        raise DataError(
            f"{source}: the part {split} is counted on the whole data set, and a stream does not know how long it is; "
            f"write {source.removesuffix(split)}{name} with data.max_pairs=N for the first ones, or "
            "data.streaming=false, which stores all of it first"
        )
    datasets = _import_datasets()
    folder, configuration = match["folder"], None
    try:
        # "owner/name/x" is a folder unless the data set declares a configuration of that name.
        if folder and folder in datasets.get_dataset_config_names(match["id"]):
            folder, configuration = None, folder
        options = {"streaming": True} if streaming else {}
        table = datasets.load_dataset(match["id"], configuration, data_dir=folder, split=split, **options)
    except Exception as error:  # the hub client raises a different type for each of a dozen network failures
        offline = os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "TRUE", "YES", "ON")
        if offline:
            why = "HF_HUB_OFFLINE is set, so only data sets already in the cache can be read"
            fix = "Unset HF_HUB_OFFLINE to download it once"
        else:
            why = (str(error) or type(error).__name__).splitlines()[0]
            fix = "Check the id, the split and the connection"
        raise DataError(
            f"{source}: there is no local file of this name{_similar_names_hint(Path(source))}, and the hub data set "
            f"(split {split}) cannot be loaded: {why}. {fix}, or save it as a file and write data.path=FILE.jsonl"
        ) from error
    yield from _table_rows(source, table) if not streaming else _streamed_rows(source, table)


def _streamed_rows(source: str, table: Any) -> Iterator[Row]:
    """Rows of a `datasets.IterableDataset`, as they arrive. Raises DataError where the stream ends too early."""
    number = 0
    try:
        for values in table:
            number += 1
            yield Row(source, number, values)
    except Exception as error:  # the client raises another type for each of a dozen network failures
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(
            f"{source}: the stream broke off after row {number}: {reason}. Give the command again, which reads from "
            "the start, or write data.streaming=false to store the data set first"
        ) from error


READERS: dict[str, Callable[[Path, BadRows], Iterator[Row]]] = {
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".parquet": _read_parquet,
    ".csv": read_delimited,
    ".tsv": read_delimited,
}
