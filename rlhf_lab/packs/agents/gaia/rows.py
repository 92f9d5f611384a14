"""Reader of the official GAIA questions: from a copy of the repository, a metadata file, or the hub.

`<year>/<split>/metadata.parquet` (earlier: metadata.jsonl) has a row per question, and its directory contains the
attachments. The repository is gated: accept its terms on the hub, and set HF_TOKEN. Its questions must not be
published.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from rlhf_lab.core.errors import OPTIONAL, DataError, MissingDependency
from rlhf_lab.core.files import file_digest, fingerprint
from rlhf_lab.data.reading import HUB_ID, read_rows
from rlhf_lab.data.rows import BadRows, RowProblem, column, describe, text_column
from rlhf_lab.packs.agents.gaia.questions import GaiaQuestion

METADATA = ("metadata.parquet", "metadata.jsonl")
YEAR = "2023"
WITHHELD = "?"
"""Text in the column of answers in the test split, whose answers are secret."""


def read_gaia(source: str, split: str = "validation") -> list[GaiaQuestion]:
    """Read the questions of a source, in its order.

    Args:
        source: a copy of the repository, a directory or file of metadata, or a hub id as `owner/name` (all levels of
            the year) or `owner/name/configuration:split`.
        split: split of a copy, or of a hub id that names none.
    Raises:
        DataError: the source does not exist, or rows have a wrong form; the message lists these rows.
    """
    file = _metadata_file(source, split)
    bad = BadRows(source)
    questions: dict[str, GaiaQuestion] = {}
    directory = file.parent if file else None
    for row in read_rows(str(file or _hub_rows(source, split)), bad):
        try:
            question = _question(row.values, directory, split)
            if question.id in questions:
                raise RowProblem(f"task_id {question.id!r} occurs twice; every question needs its own")
            questions[question.id] = question
        except RowProblem as problem:
            # All wrong rows are collected, so that one error names them all.
            bad.add(row.file, row.number, str(problem))
    bad.finish()
    if not questions:
        raise DataError(f"{source} has no questions; expected rows with task_id, Question, Level and Final answer")
    return list(questions.values())


def gaia_attachment(source: str, split: str, location: str) -> Path:
    """Return the path of an attachment, downloading it from the hub once if necessary.

    Args:
        source: the source, as in `read_gaia`.
        split: the split, as in `read_gaia`.
        location: a value of `GaiaQuestion.files`.

    Raises DataError if the attachment does not exist or the hub refuses the download.
    """
    file = _metadata_file(source, split)
    if file is None:
        return _hub_file(_hub_name(source), location)
    path = file.parent / location
    if not path.is_file():
        raise DataError(f"{path}: the attachment does not exist; copy the attachments to the directory of {file.name}")
    return path


def source_digest(source: str, split: str) -> str | None:
    """Return the SHA-256 digest of the metadata and attachments of a local source; None for a hub id.

    Raise DataError as `read_gaia` does.
    """
    file = _metadata_file(source, split)
    if file is None:
        return None
    attached: list[str] = []
    for question in read_gaia(source, split):
        attached += question.files.values()
    digests = {name: file_digest(file.parent / name) for name in sorted(attached)}
    return fingerprint([file_digest(file), digests])


def _metadata_file(source: str, split: str) -> Path | None:
    """Return the metadata file of a local source; None for a hub id."""
    path = Path(source).expanduser()
    if path.is_file():
        return path
    if not path.is_dir():
        # A path that does not exist is an error; only a name that cannot be a path is taken as a hub id.
        looks_local = source.startswith((".", "/", "~")) or not HUB_ID.fullmatch(source)
        if looks_local:
            raise DataError(f"{source} is no file, no directory and no hub id (owner/name)")
        return None
    candidates = [directory / name for directory in (path, path / YEAR / split) for name in METADATA]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    expected = ", ".join(str(candidate.relative_to(path)) for candidate in candidates)
    raise DataError(f"{source}: the directory has none of {expected}; name a copy of the repository, or the file")


def _hub_name(source: str) -> str:
    match = HUB_ID.fullmatch(source)
    assert match is not None, f"{source} is not a hub id"
    return match["id"]


def _hub_rows(source: str, split: str) -> str:
    """Complete a hub id with a configuration and a split if it lacks them."""
    named, _, own_split = source.partition(":")
    configured = named if named != _hub_name(source) else f"{named}/{YEAR}_all"
    return f"{configured}:{own_split or split}"


def _question(values: Mapping[str, Any], directory: Path | None, split: str) -> GaiaQuestion:
    """Convert one row to a question. Raise RowProblem.

    Args:
        values: columns of the row.
        directory: directory of the attachments; None for the hub.
        split: the split.
    """
    name = values.get("file_name") or ""
    return GaiaQuestion(
        id=_id(values),
        question=text_column(values, "Question"),
        level=_level(column(values, "Level")),
        answer=_answer(column(values, "Final answer")),
        files={name: _location(name, values, directory, split)} if name else {},
    )


def _id(values: Mapping[str, Any]) -> str:
    # The id is the name of a directory in a run.
    task_id = text_column(values, "task_id")
    if not _is_simple_name(task_id):
        raise RowProblem(f"column 'task_id' is {describe(task_id)}; expected a simple name without / \\ : and not ..")
    return task_id


def _level(value: Any) -> int:
    if str(value) in ("1", "2", "3"):
        return int(value)
    raise RowProblem(f"column 'Level' is {describe(value)}; expected 1, 2 or 3")


def _answer(value: Any) -> str | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)  # some copies of the file store numbers without quotes
    if not isinstance(value, str) or not value.strip():
        raise RowProblem(
            f"column 'Final answer' is {describe(value)}; expected text, or {WITHHELD!r} for a secret answer"
        )
    return None if value.strip() == WITHHELD else value


def _location(name: Any, values: Mapping[str, Any], directory: Path | None, split: str) -> str:
    """Return the location of an attachment, relative to the metadata or in the hub's repository. Raise RowProblem."""
    if not _is_simple_name(name):
        raise RowProblem(f"column 'file_name' is {describe(name)}; expected a file name without a directory")
    if directory is not None:
        if not (directory / name).is_file():
            raise RowProblem(
                f"column 'file_name': {name} is not in {directory}; copy the attachments to the metadata's directory"
            )
        return str(name)
    value = values.get("file_path") or f"{YEAR}/{split}/{name}"
    location = str(value)
    parts = PurePosixPath(location).parts
    # The path comes from a file, so it must not lead out of the repository, and has to end with the name.
    leads_out = "\\" in location or location.startswith("/") or ".." in parts
    if leads_out or parts[-1:] != (name,):
        raise RowProblem(f"column 'file_path' is {describe(value)}; expected a path in the repository to {name}")
    return location


def _is_simple_name(name: Any) -> bool:
    """Return True if a value is the name of a file without any path."""
    if not isinstance(name, str) or name in ("", ".", ".."):
        return False
    return not set(name) & set("/\\\0:")


def _hub_file(name: str, location: str) -> Path:
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise MissingDependency(*OPTIONAL["huggingface_hub"]) from None
    try:
        return Path(hf_hub_download(name, location, repo_type="dataset"))
    except Exception as error:  # the client has a different exception type for each of many failures
        # only the first line, because the messages of the client have several
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(
            f"{name}: the attachment {location} cannot be downloaded: {why}. Check the connection. For a gated data "
            "set accept the terms on its page and set HF_TOKEN, or set algorithm.path=DIR to a copy of the "
            "repository"
        ) from error
