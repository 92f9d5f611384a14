"""Register of a suite: all accepted runs; the last one also has its values by prompt.

`outputs/accepted/SUITE.json` contains everything that a comparison needs, so an accepted run can still be compared with
after its directory has been deleted.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from filelock import FileLock

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.files import explained, make_dir, read_json, write_json
from rlhf_lab.gates.scores import Scores


def register_path(run: Path, suite: str) -> Path:
    """Return the path of a suite's register, next to the directory `runs` that contains the run."""
    store = run.resolve().parent
    # a run outside a directory `runs` has its register next to itself
    outputs = store.parent if store.name == "runs" else store
    return outputs / "accepted" / f"{suite}.json"


def history(path: Path) -> list[dict[str, Any]]:
    """Return the accepted runs, oldest first. Raises DataError for a damaged register."""
    if not path.is_file():
        return []
    values = read_json(path)
    if not isinstance(values, dict) or not isinstance(values.get("history"), list):
        raise DataError(f"{path} is not a register of accepted runs; restore it, or move it away to start a new one")
    entries: list[dict[str, Any]] = values["history"]
    return entries


def last_accepted(path: Path) -> tuple[str, dict[str, Scores]]:
    """Return (run, check → its values) of the run accepted last; ("", {}) if there is none."""
    entries = history(path)
    if not entries:
        return "", {}
    checks = entries[-1]["checks"]
    return str(entries[-1]["run"]), {name: Scores.from_dict(values) for name, values in checks.items()}


def accept_run(
    path: Path, suite: str, run: Path, manifest: dict[str, Any], checks: dict[str, Scores], *, after: str
) -> None:
    """Add a run to the register. Earlier runs keep their estimates and lose their values by prompt.

    Args:
        after: the run that it was compared with; "" if there was none.

    Raises:
        DataError: another run has been accepted since the comparison.
    """
    make_dir(path.parent)
    with explained(path), FileLock(path.with_suffix(".lock")):
        # another process may have accepted a run since the comparison
        last, _ = last_accepted(path)
        if last != after:
            raise DataError(f"{path}: meanwhile {last or 'no run'} is the last accepted; run the gate's command again")
        entries = history(path)
        # only the last run is compared with; dropping the values of the others keeps the file small
        for entry in entries:
            for values in entry["checks"].values():
                values["outcomes"] = {}
                values["clusters"] = {}
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
