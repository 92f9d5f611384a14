"""Rows of data sources: .jsonl, .json, .csv, .tsv (each also as .gz), .parquet, a directory or glob of these, a
directory saved by `datasets`, or a data set of the hub.

Rows are streamed. An unreadable row does not stop the reading at once: `BadRows` collects the problems and reports them
together, grouped by problem. A file that cannot be read at all raises `DataError` immediately.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

from rlhf_lab.core.errors import DataError, import_optional
from rlhf_lab.core.files import parse_json_as_written
from rlhf_lab.core.text import is_well_formed, well_formed_value
from rlhf_lab.data.rows import BadRows, SourceRow, describe, non_finite_problem, not_an_object
from rlhf_lab.data.text_files import file_lines, is_json_lines, is_json_list, read_delimited, read_json_file

SUFFIXES = (*(".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet"), *(".csv", ".csv.gz", ".tsv", ".tsv.gz"))
# "owner/name", with a directory and a split: "owner/name/dir:train[:100]"
HUB_ID = re.compile(r"(?P<id>[\w.-]+(/[\w.-]+)?)(/(?P<folder>[\w./-]+))?(:(?P<split>[\w.\[\]%:-]+))?")


def read_rows(source: str, bad: BadRows, *, streaming: bool = False) -> Iterator[SourceRow]:
    """Stream the rows of a file, directory, glob or hub data set. Their texts are well-formed.

    Args:
        source: a path, or a hub data set as `owner/name`, `owner/name:split` or `owner/name/DIR:split` (default split:
            train). A configuration that the data set declares is named like a directory: `openai/gsm8k/main`.
        bad: receives rows that are not JSON objects, and the rows that had lone surrogates.
        streaming: read a hub data set as it arrives instead of storing it first.

    Raises:
        DataError: the source does not exist, or a file is damaged.
    """
    # lone surrogates cannot be encoded as UTF-8, so later files could not be written
    for row in _rows_as_written(source, bad, streaming):
        if is_well_formed(row.values):
            yield row
        else:
            bad.repaired.append((row.file, row.number))
            yield row._replace(values=well_formed_value(row.values))


def _rows_as_written(source: str, bad: BadRows, streaming: bool) -> Iterator[SourceRow]:
    directory = Path(source).expanduser()
    # the two files that `Dataset.save_to_disk` writes
    if (directory / "state.json").is_file() and (directory / "dataset_info.json").is_file():
        yield from _table_rows(source, import_optional("datasets").load_from_disk(str(directory)))
        return
    files = local_files(source)
    if files is None:
        yield from _read_hub(source, streaming)
        return
    for file in files:
        suffix = Path(file.stem).suffix if file.suffix == ".gz" else file.suffix
        yield from READERS[suffix](file, bad)


def local_files(source: str) -> list[Path] | None:
    """Return the sorted files of a source, or None if it can only be a hub id. Raise DataError if a file is missing."""
    path = Path(source).expanduser()
    if path.is_file():
        if not path.name.endswith(SUFFIXES):
            raise DataError(f"{source}: the format of {path.name} is unknown; use one of {', '.join(SUFFIXES)}")
        return [path]
    if path.is_dir():
        _refuse_dataset_dict(path)
        return _dir_files(path)
    # "name[:100]" has a magic character of a glob, but is the slice of a hub data set
    if glob.has_magic(source) and not HUB_ID.fullmatch(source):
        paths = [Path(name) for name in glob.glob(str(path)) if name.endswith(SUFFIXES)]
        files = sorted(file for file in paths if file.is_file())
        if not files:
            raise DataError(f"{source}: no {', '.join(SUFFIXES)} file matches this pattern{_missing_file_hint(path)}")
        return files
    # "owner/name" may be a relative path or a hub id; a file ending or "./" means a path
    looks_local = source.startswith((".", "/", "~", os.sep)) or source.endswith(SUFFIXES)
    if looks_local or not HUB_ID.fullmatch(source):
        raise DataError(f"{source}: there is no such file or directory{_missing_file_hint(path)}")
    return None


def _refuse_dataset_dict(directory: Path) -> None:
    """Raise DataError if `datasets` saved several splits in the directory, because one of them has to be chosen."""
    if not (directory / "dataset_dict.json").is_file():
        return
    splits = sorted(file.parent.name for file in directory.glob("*/dataset_info.json"))
    # common names of splits; the first split if none of them is there
    train = next((name for name in splits if name.startswith("train")), None)
    test = next((name for name in splits if name.startswith(("test", "eval", "valid"))), None)
    first = splits[0] if splits else "SPLIT"
    chosen = f"data.path={directory / (train or first)}"
    if train and test:
        chosen += f" data.test_path={directory / test}"
    listed = ", ".join(splits) or "none"
    raise DataError(
        f"{directory}: the directory is a DatasetDict with the splits {listed}; name a split: write {chosen}"
    )


def _dir_files(directory: Path) -> list[Path]:
    files = sorted(file for file in directory.iterdir() if file.name.endswith(SUFFIXES) and file.is_file())
    if not files:
        raise DataError(
            f"{directory}: the directory has no {', '.join(SUFFIXES)} file; name a directory with such files"
        )
    train = [file.name for file in files if file.name.startswith("train")]
    test = [file.name for file in files if file.name.startswith(("test", "eval", "valid"))]
    if train and test:
        raise DataError(
            f"{directory}: the directory has both {train[0]} and {test[0]}, which would be mixed; "
            f"write data.path={directory / train[0]} data.test_path={directory / test[0]}"
        )
    return files


def _data_names(directory: Path) -> list[str]:
    entries = [file for file in directory.iterdir() if file.is_dir() or file.name.endswith(SUFFIXES)]
    return sorted(file.name for file in entries)


def _similar_names_hint(path: Path) -> str:
    """Return a question that suggests similarly named files in the same directory; "" if there are none."""
    names = _data_names(path.parent) if path.parent.is_dir() else []
    close = get_close_matches(path.name, names, n=2, cutoff=0.6)
    if not close:
        return ""
    candidates = " or ".join(str(path.parent / name) for name in close)
    return f" (did you mean {candidates}?)"


def _missing_file_hint(path: Path) -> str:
    """Return the part of a "missing file" message that lists the files that exist."""
    if not path.parent.is_dir():
        return f"; the directory {path.parent} does not exist either"
    names = _data_names(path.parent)
    listed = ", ".join(names[:8]) + (", …" if len(names) > 8 else "") or "no data file"
    return _similar_names_hint(path) or f"; {path.parent} has {listed}"


def _read_jsonl(file: Path, bad: BadRows) -> Iterator[SourceRow]:
    for number, line in file_lines(file):
        line = line.rstrip()
        if not line:
            continue
        # an invalid line is recorded and skipped, so that one report has all of them
        try:
            values = parse_json_as_written(line.decode("utf-8"))
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
        if problem := _row_problem(values):
            bad.add(str(file), number, problem)
        else:
            yield SourceRow(str(file), number, values)


def _row_problem(values: Any) -> str | None:
    return non_finite_problem(values) if isinstance(values, dict) else not_an_object(values)


def _json_problem(text: str, error: json.JSONDecodeError) -> str:
    start = max(0, error.pos - 20)
    excerpt = text[start : error.pos + 20].strip()
    return f"broken JSON at column {error.colno} ({error.msg}) near {excerpt!r}; expected one JSON object per line"


def _read_json(file: Path, bad: BadRows) -> Iterator[SourceRow]:
    """Yield the rows of a .json file: a list of objects, one object, or one object per line, which is JSONL."""
    if not is_json_list(file) and is_json_lines(file):
        yield from _read_jsonl(file, bad)
        return
    content = read_json_file(file)
    if not isinstance(content, (list, dict)):
        raise DataError(f"{file}: the file contains {describe(content)}; expected a list of objects")
    rows = content if isinstance(content, list) else [content]
    for number, values in enumerate(rows, start=1):
        if problem := _row_problem(values):
            bad.add(str(file), number, problem)
        else:
            yield SourceRow(str(file), number, values)


def _read_parquet(file: Path, bad: BadRows) -> Iterator[SourceRow]:
    pa = import_optional("pyarrow")
    pq = import_module("pyarrow.parquet")
    number = 0
    try:
        with pq.ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=1024):
                for values in _batch_values(batch):
                    number += 1
                    if isinstance(values, UnicodeDecodeError):
                        byte = values.object[values.start]
                        bad.add(str(file), number, f"a text has the byte 0x{byte:02x}, not UTF-8; write it as UTF-8")
                    else:
                        yield SourceRow(str(file), number, values)
    # ValueError: text that is not UTF-8, or a time outside the range of Python's datetime
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise DataError(
            f"{file}: cannot be read as Parquet after row {number} ({error}); download or write the file again"
        ) from error


def _batch_values(batch: Any) -> Iterator[dict[str, Any] | UnicodeDecodeError]:
    """Yield the rows of an Arrow batch, or an error for a row whose text is not UTF-8; Parquet does not check that."""
    try:
        yield from batch.to_pylist()
    except UnicodeDecodeError:
        # convert the rows one by one to find the bad ones
        for number in range(batch.num_rows):
            try:
                yield from batch.slice(number, 1).to_pylist()
            except UnicodeDecodeError as error:
                yield error


def _table_rows(source: str, table: Any) -> Iterator[SourceRow]:
    number = 0
    for batch in table.iter(batch_size=1024):  # a batch is {column: [value]}
        for values in zip(*batch.values(), strict=True):
            number += 1
            yield SourceRow(source, number, dict(zip(batch, values, strict=True)))


def _read_hub(source: str, streaming: bool) -> Iterator[SourceRow]:
    match = HUB_ID.fullmatch(source)
    assert match is not None, f"{source} is not a hub id"
    split = match["split"] or "train"
    if streaming and "[" in split:
        name = split.partition("[")[0]
        raise DataError(
            f"{source}: the slice {split} is relative to the full data set, but the length of a stream is unknown; "
            f"write {source.removesuffix(split)}{name} with data.max_pairs=N for the first N pairs, or "
            "data.streaming=false, which downloads the full data set first"
        )
    datasets = import_optional("datasets")
    directory, configuration = match["folder"], None
    try:
        # "owner/name/x" is a directory unless the data set declares a configuration of that name.
        if directory and directory in datasets.get_dataset_config_names(match["id"]):
            directory, configuration = None, directory
        options = {"streaming": True} if streaming else {}
        table = datasets.load_dataset(match["id"], configuration, data_dir=directory, split=split, **options)
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


def _streamed_rows(source: str, table: Any) -> Iterator[SourceRow]:
    """Yield the rows of a `datasets.IterableDataset` as they arrive. Raise DataError if the stream ends too early."""
    number = 0
    try:
        for values in table:
            number += 1
            yield SourceRow(source, number, values)
    except Exception as error:  # the hub client raises a different type for each of a dozen network failures
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(
            f"{source}: the stream was interrupted after row {number}: {reason}. Run the command again, which reads "
            "from the start, or write data.streaming=false to download the data set first"
        ) from error


READERS: dict[str, Callable[[Path, BadRows], Iterator[SourceRow]]] = {
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".parquet": _read_parquet,
    ".csv": read_delimited,
    ".tsv": read_delimited,
}
