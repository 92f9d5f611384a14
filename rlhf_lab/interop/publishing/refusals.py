"""Why a run is not published: what is never published, and what is published only where `despite` names it."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_lab.core import seal
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import DataError
from rlhf_lab.interop.publishing.provenance import Provenance

DESPITE = {
    "hard_stop": "the monitor raised a strong warning of reward hacking while it was trained",
    "smoke": "it is a smoke run (size=smoke): it shows that the command runs, and its numbers mean nothing",
    "unnamed_code": "the code that made it had changes that no commit names",
    "failed_gate": "it failed the gate that was asked",
}
"""What `despite` may name → why a run like that is refused without it."""


def require_publishable(made: Provenance) -> None:
    """Raises DataError or ArtifactError where a run cannot be published, whatever is agreed to."""
    folder, run = made.folder, made.run
    if run.status != "completed":
        reason = f": {run.error}" if run.error else ""
        raise DataError(f"{folder} is {run.status}{reason}; only a completed run is published: {_again(made)}")
    if not (made.model_folder / "config.json").is_file():
        raise DataError(
            f"{folder} made no model ({made.algorithm or run.recipe} only evaluates); name a run that trains"
        )
    if not (folder / seal.NAME).is_file():
        raise DataError(f"{folder} has no {seal.NAME}, so nothing says that it is whole; {_again(made)}")
    seal.check(folder, rebuilt=False, say=console.print)
    missing = [
        what
        for what, value in (
            ("the version of the code", made.code),
            ("its data", made.data_name),
            ("the fingerprint of its data", made.fingerprint),
        )
        if not value
    ]
    if missing:
        raise DataError(f"{folder / 'manifest.json'} does not name {', '.join(missing)}; {_again(made)}")


def reasons_against(made: Provenance) -> list[str]:
    """Names in `DESPITE` that are true of a run or of a stage before it, without the gate's."""
    reasons = []
    alarms = [run.results.get("alarm/hard_stop") for run in made.chain]
    if any(alarm is not None and alarm.mean == 1 for alarm in alarms):
        reasons.append("hard_stop")
    if any(run.settings.get("size") == "smoke" for run in made.chain):
        reasons.append("smoke")
    if any(str(run.manifest.get("git_sha") or "").endswith("+changes") for run in made.chain):
        reasons.append("unnamed_code")
    return reasons


def require_agreed(made: Provenance, reasons: Sequence[str], despite: Sequence[str]) -> None:
    """Raises DataError naming every reason against publishing that was not agreed to."""
    open_reasons = [name for name in reasons if name not in despite]
    if not open_reasons:
        return
    words = "; ".join(f"{DESPITE[name]} ({name})" for name in open_reasons)
    raise DataError(
        f"{made.folder} is not published: {words}. If it is to be published all the same, and its card to say so, add "
        f"despite={','.join(dict.fromkeys([*despite, *open_reasons]))}"
    )


def _again(made: Provenance) -> str:
    return f"give its command again: {made.run.manifest.get('command') or 'see config.yaml'}"
