"""The official GAIA questions: a copy of the repository, its metadata file, or the hub.

`<year>/<split>/metadata.parquet` (earlier copies: metadata.jsonl) has a row per question; attachments lie beside it.
The repository is gated: accept its terms there, and set HF_TOKEN. Its questions must not be published.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from rlhf_lab.core.errors import OPTIONAL, DataError, MissingDependency
from rlhf_lab.core.files import file_digest, fingerprint, parse_json
from rlhf_lab.data.reading import HUB_ID, read_rows
from rlhf_lab.data.rows import BadRows, RowProblem, column, describe, text_column
from rlhf_lab.packs.agents.gaia.questions import GaiaQuestion

METADATA = ("metadata.parquet", "metadata.jsonl")
YEAR = "2023"
WITHHELD = "?"
"""The answer of a question of the test split."""


def read_gaia(source: str, split: str = "validation") -> list[GaiaQuestion]:
    """The questions of a source, in its order.

    Args:
        source: a copy of the repository, a folder or file of metadata, or a hub id as `owner/name` (all levels of the
            year) or `owner/name/configuration:split`.
        split: of a copy or a hub id that names none.
    Raises:
        DataError: nothing is there, or rows are not as expected; it names each.
    """
    file = _metadata_file(source, split)
    bad = BadRows(source)
    questions: dict[str, GaiaQuestion] = {}
    for row in read_rows(str(file or _hub_rows(source, split)), bad):
        try:
            question = _question(row.values, file.parent if file else None, split)
            if question.id in questions:
                raise RowProblem(f"task_id {question.id!r} was there before; every question has its own")
            questions[question.id] = question
        except RowProblem as problem:
            bad.add(row.file, row.number, str(problem))
    bad.finish()
    if not questions:
        raise DataError(f"{source}: no questions; expected rows with task_id, Question, Level and Final answer")
    return list(questions.values())


def gaia_attachment(source: str, split: str, location: str) -> Path:
    """Where an attachment lies; one of the hub is fetched once. `location` is a value of `GaiaQuestion.files`.

    Raises DataError where it is not there or the hub does not give it.
    """
    file = _metadata_file(source, split)
    if file is None:
        return _hub_file(_hub_name(source), location)
    path = file.parent / location
    if not path.is_file():
        raise DataError(f"{path}: the attachment is not there; attachments lie beside {file.name}")
    return path


def source_digest(source: str, split: str) -> str | None:
    """SHA-256 of the metadata and the attachments of a local source; None for a hub id.

    Raises DataError as `read_gaia` does.
    """
    file = _metadata_file(source, split)
    if file is None:
        return None
    attached = [location for question in read_gaia(source, split) for location in question.files.values()]
    return fingerprint([file_digest(file), {name: file_digest(file.parent / name) for name in sorted(attached)}])


def _metadata_file(source: str, split: str) -> Path | None:
    """The metadata of a local source; None for a hub id."""
    path = Path(source).expanduser()
    if path.is_file():
        return path
    if not path.is_dir():
        looks_local = source.startswith((".", "/", "~")) or not HUB_ID.fullmatch(source)
        if looks_local:
            raise DataError(f"{source}: there is no such file or folder, and it is no hub id (owner/name)")
        return None
    candidates = [folder / name for folder in (path, path / YEAR / split) for name in METADATA]
    found = next((candidate for candidate in candidates if candidate.is_file()), None)
    if found is None:
        expected = ", ".join(str(candidate.relative_to(path)) for candidate in candidates)
        raise DataError(f"{source}: the folder has none of {expected}; name the copy of the repository, or the file")
    return found


def _hub_name(source: str) -> str:
    match = HUB_ID.fullmatch(source)
    assert match is not None, f"{source} is not a hub id"
    return match["id"]


def _hub_rows(source: str, split: str) -> str:
    """A hub id with the configuration and split that it does not name."""
    named, _, own_split = source.partition(":")
    configured = named if named != _hub_name(source) else f"{named}/{YEAR}_all"
    return f"{configured}:{own_split or split}"


def _question(values: Mapping[str, Any], folder: Path | None, split: str) -> GaiaQuestion:
    """One row as a question. Raises RowProblem.

    Args:
        folder: where attachments lie; None on the hub.
    """
    name = values.get("file_name") or ""
    files = {name: _location(name, values, folder, split)} if name else {}
    return GaiaQuestion(
        id=_id(values),
        question=text_column(values, "Question"),
        level=_level(column(values, "Level")),
        answer=_answer(column(values, "Final answer")),
        files=files,
        notes=_notes(values.get("Annotator Metadata")),
    )


def _id(values: Mapping[str, Any]) -> str:
    """The id, which names a folder of what a run writes. Raises RowProblem."""
    task_id = text_column(values, "task_id")
    if not _is_plain_name(task_id):
        raise RowProblem(f"column 'task_id' is {describe(task_id)}; expected a plain name without / \\ : and not ..")
    return task_id


def _level(value: Any) -> int:
    if str(value) in ("1", "2", "3"):
        return int(value)
    raise RowProblem(f"column 'Level' is {describe(value)}; expected 1, 2 or 3")


def _answer(value: Any) -> str | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)  # a number that a copy of the file does not quote
    if not isinstance(value, str) or not value.strip():
        raise RowProblem(
            f"column 'Final answer' is {describe(value)}; expected text, or {WITHHELD!r} where it is kept back"
        )
    return None if value.strip() == WITHHELD else value


def _location(name: Any, values: Mapping[str, Any], folder: Path | None, split: str) -> str:
    """Where an attachment lies: beside the metadata, or in the repository of the hub. Raises RowProblem."""
    if not _is_plain_name(name):
        raise RowProblem(f"column 'file_name' is {describe(name)}; expected the name of a file beside the metadata")
    if folder is not None:
        if not (folder / name).is_file():
            raise RowProblem(f"column 'file_name': {name} is not in {folder}; copy the attachments beside the metadata")
        return str(name)
    location = values.get("file_path") or f"{YEAR}/{split}/{name}"
    parts = PurePosixPath(str(location)).parts
    if "\\" in str(location) or str(location).startswith("/") or ".." in parts or parts[-1:] != (name,):
        raise RowProblem(f"column 'file_path' is {describe(location)}; expected a path in the repository to {name}")
    return str(location)


def _is_plain_name(name: Any) -> bool:
    """Whether a value is the name of a file and leads nowhere else."""
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & set("/\\\0:")


def _notes(value: Any) -> str:
    """The annotator's steps as prose, of a column that is an object or JSON."""
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError:
            return str(value)
    return str(value.get("Steps") or "") if isinstance(value, Mapping) else ""


def _hub_file(name: str, location: str) -> Path:
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise MissingDependency(*OPTIONAL["huggingface_hub"]) from None
    try:
        return Path(hf_hub_download(name, location, repo_type="dataset"))
    except Exception as error:  # the client raises a different type for each of a dozen failures
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(
            f"{name}: the attachment {location} cannot be fetched: {why}. Check the connection; of a gated data set "
            "accept the terms on its page and set HF_TOKEN, or write algorithm.path=FOLDER with a copy of the "
            "repository"
        ) from error
