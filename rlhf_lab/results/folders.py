"""Kind of a directory named on the command line: a run, a job of a study (which points at its run), or a study."""

from __future__ import annotations

from pathlib import Path

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.files import read_object
from rlhf_lab.results.rundir import is_run


def find_run(directory: Path | str) -> Path:
    """Return `directory` if it is a run directory, or the run directory of a job of a study.

    Raise DataError otherwise.
    """
    directory = Path(directory)
    if is_run(directory):
        return directory
    if (directory / "study.json").is_file():
        raise DataError(f"{directory} is a study; name one of its jobs, such as {directory / 'jobs' / '0'}")
    if not (directory / "job.json").is_file():
        raise DataError(_no_result_message(directory))
    job = read_object(directory / "job.json")
    if not job.get("run"):
        fault = str(job.get("error") or "it was interrupted").strip().splitlines()[-1]
        status = job.get("status")
        raise DataError(f"{directory} is a job that started no run ({status}: {fault}); run its study again")
    run = directory.parents[1] / str(job["run"])  # relative to the study; an absolute path stays as it is
    if not is_run(run):
        raise DataError(f"{directory} names the run {job['run']}, which does not exist; it was moved or removed")
    return run


def _no_result_message(directory: Path) -> str:
    """Return a message on what a directory should have been, with run or study directories below or next to it."""
    search_root = directory if directory.is_dir() else directory.parent
    fault = f"{directory} does not exist"
    if directory.is_dir():
        fault = f"{directory} is neither a run (manifest.json, result.json) nor a study (study.json)"
    files = [*_files_below(search_root, "study.json"), *_files_below(search_root, "manifest.json")]
    newest_first = sorted({file.parent for file in files}, key=lambda path: path.stat().st_mtime, reverse=True)
    if not newest_first:
        return f"{fault}. Use the directory that a finished command prints in its last lines."
    return f"{fault}. Nearby: " + ", ".join(map(str, newest_first[:5]))


def _files_below(directory: Path, name: str, depth: int = 4) -> list[Path]:
    """Return files called `name` up to `depth` directories down."""
    # "**" has no depth limit and could walk a large tree
    return [file for level in range(1, depth + 1) for file in directory.glob("*/" * level + name)]
