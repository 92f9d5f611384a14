"""The register of a suite: every run that was accepted, the last one with its values by prompt.

`outputs/accepted/SUITE.json` keeps what a comparison needs, so an accepted run can be compared with after its directory
is gone.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from filelock import FileLock

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.files import explained, make_folder, read_json, write_json
from rlhf_lab.gates.scores import Scores


def register_path(run: Path, suite: str) -> Path:
    """Beside the folder `runs` that a run lies in."""
    store = run.resolve().parent
    outputs = store.parent if store.name == "runs" else store
    return outputs / "accepted" / f"{suite}.json"


def history(path: Path) -> list[dict[str, Any]]:
    """Accepted runs, the first one first. Raises DataError for a damaged register."""
    if not path.is_file():
        return []
    values = read_json(path)
    if not isinstance(values, dict) or not isinstance(values.get("history"), list):
        raise DataError(f"{path} is no register of accepted runs; restore it, or move it away to begin anew")
    entries: list[dict[str, Any]] = values["history"]
    return entries


def last_accepted(path: Path) -> tuple[str, dict[str, Scores]]:
    """(run, check → its values) of the run accepted last; ("", {}) where there is none."""
    entries = history(path)
    if not entries:
        return "", {}
    checks = entries[-1]["checks"]
    return str(entries[-1]["run"]), {name: Scores.from_dict(values) for name, values in checks.items()}


def accept(
    path: Path, suite: str, run: Path, manifest: dict[str, Any], checks: dict[str, Scores], *, after: str
) -> None:
    """Add a run to the register. Of the runs before it the estimates are kept, and not the values by prompt.

    Args:
        after: the run that it was compared with; empty where there was none.
    Raises:
        DataError: another run was accepted since.
    """
    make_folder(path.parent)
    with explained(path), FileLock(path.with_suffix(".lock")):
        last, _ = last_accepted(path)
        if last != after:
            raise DataError(f"{path}: {last or 'no run'} is the last accepted now; give the gate's command again")
        entries = history(path)
        for entry in entries:
            for values in entry["checks"].values():
                values["outcomes"] = {}
        entries.append(
            {
                "run": str(run),
                "recipe": manifest.get("recipe"),
                "key": manifest.get("key"),
                "git_sha": manifest.get("git_sha"),
                "accepted": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
                "checks": {name: scores.to_dict() for name, scores in checks.items()},
            }
        )
        write_json(path, {"suite": suite, "history": entries})
