"""What a folder named on the command line is: a run, a job of a study (which points at its run), or a study."""

from __future__ import annotations

from pathlib import Path

from rlhf_lab.core.errors import DataError
from rlhf_lab.results.rundir import is_run, read_json


def find_run(folder: Path | str) -> Path:
    """The run directory that `folder` is or, as a job of a study, names. Raises DataError for anything else."""
    folder = Path(folder)
    if is_run(folder):
        return folder
    if not (folder / "job.json").is_file():
        raise DataError(no_result_message(folder))
    job = read_json(folder / "job.json", [])
    if not job.get("run"):
        fault = str(job.get("error") or "it was interrupted").strip().splitlines()[-1]
        raise DataError(f"{folder} is a job that began no run ({job.get('status')}: {fault}); run its study again")
    run = folder.parents[1] / str(job["run"])  # relative to the study; an absolute path stays as it is
    if not is_run(run):
        raise DataError(f"{folder} names the run {job['run']}, which is not there; it was moved or removed")
    return run


def no_result_message(folder: Path) -> str:
    """Say what was expected of a folder, and name run or study directories below or beside it."""
    if folder.is_dir():
        search_root = folder
        fault = f"{folder} is neither a run (manifest.json, result.json) nor a study (study.json)"
    else:
        search_root = folder.parent
        fault = f"{folder} does not exist"
    files = [*_files_below(search_root, "study.json"), *_files_below(search_root, "manifest.json")]
    newest_first = sorted({file.parent for file in files}, key=lambda path: path.stat().st_mtime, reverse=True)
    if not newest_first:
        return f"{fault}. Give the directory that a finished command names in its last lines."
    return f"{fault}. Near by: " + ", ".join(map(str, newest_first[:5]))


def _files_below(folder: Path, name: str, depth: int = 4) -> list[Path]:
    """Files called `name` at most `depth` folders down."""
    files: list[Path] = []
    for level in range(1, depth + 1):  # "**" knows no limit of depth
        files += folder.glob("*/" * level + name)
    return files
