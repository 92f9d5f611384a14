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
        raise DataError(neither(folder))
    job = read_json(folder / "job.json", [])
    if not job.get("run"):
        fault = str(job.get("error") or "it was interrupted").strip().splitlines()[-1]
        raise DataError(f"{folder} is a job that began no run ({job.get('status')}: {fault}); run its study again")
    run = folder.parents[1] / str(job["run"])  # relative to the study; an absolute path stays as it is
    if not is_run(run):
        raise DataError(f"{folder} names the run {job['run']}, which is not there; it was moved or removed")
    return run


def neither(folder: Path) -> str:
    """Say what was expected of a folder, and name run or study directories below or beside it."""
    if not folder.is_dir():
        start, fault = folder.parent, f"{folder} does not exist"
    else:
        start, fault = folder, f"{folder} is neither a run (manifest.json, result.json) nor a study (study.json)"
    files = [file for name in ("study.json", "manifest.json") for file in _below(start, name)]
    near = sorted({file.parent for file in files}, key=lambda path: path.stat().st_mtime, reverse=True)[:5]
    if not near:
        return f"{fault}. Give the directory that a finished command names in its last lines."
    return f"{fault}. Near by: " + ", ".join(map(str, near))


def _below(folder: Path, name: str, depth: int = 4) -> list[Path]:
    """Files called `name` at most `depth` folders down."""
    return [file for level in range(1, depth + 1) for file in folder.glob("*/" * level + name)]
