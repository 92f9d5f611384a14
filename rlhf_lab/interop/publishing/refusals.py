"""Reasons not to publish a run: absolute ones, and those that the user can accept with `despite`."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_lab.core import checksums as seal
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import DataError
from rlhf_lab.interop.publishing.provenance import PublishedModel
from rlhf_lab.results.rundir import StoredRun

# The names are values of the option `despite` and appear in commands, so they must not change.
DESPITE = {
    "hard_stop": "the monitor raised a critical alert of reward hacking during its training",
    "audit": "the audit found its policy worse than the policy it started from",
    "smoke": "it is a smoke run (size=smoke), which only shows that the command works; its numbers mean nothing",
    "unnamed_code": "its code had changes that are not in any commit",
    "failed_gate": "it failed the requested gate",
}
"""Name of a reason for `despite` → its description."""


def require_publishable(provenance: PublishedModel) -> None:
    """Raise DataError or ArtifactError if a run cannot be published at all."""
    directory, run = provenance.directory, provenance.run
    if run.status != "completed":
        reason = f": {run.error}" if run.error else ""
        raise DataError(
            f"{directory} is {run.status}{reason}; only a completed run can be published; {_repeat_hint(provenance)}"
        )
    if not (provenance.model_dir / "config.json").is_file():
        raise DataError(
            f"{directory} has no model ({provenance.algorithm or run.recipe} only evaluates); name a run that trains"
        )
    if not (directory / seal.NAME).is_file():
        raise DataError(f"{directory} has no {seal.NAME}, so its files cannot be verified; {_repeat_hint(provenance)}")
    seal.check(directory, rebuilt=False, say=console.print)
    missing = [
        what
        for what, value in (
            ("the version of the code", provenance.code),
            ("its data", provenance.data_name),
            ("the fingerprint of its data", provenance.fingerprint),
        )
        if not value
    ]
    if missing:
        manifest = directory / "manifest.json"
        raise DataError(f"{manifest} has no entry for {', '.join(missing)}; {_repeat_hint(provenance)}")


def reasons_against(provenance: PublishedModel) -> list[str]:
    """Return the names in `DESPITE` that apply to a run or to a stage before it; `failed_gate` is checked elsewhere."""
    reasons = []
    alarms = [run.results.get("alarm/hard_stop") for run in provenance.chain]
    # Earlier stages count as well, because the published weights come from them.
    if any(alarm is not None and alarm.mean == 1 for alarm in alarms):
        reasons.append("hard_stop")
    if any(_failed_audit(run) for run in provenance.chain):
        reasons.append("audit")
    if any(run.settings.get("size") == "smoke" for run in provenance.chain):
        reasons.append("smoke")
    commits = [str(run.manifest.get("git_sha") or "") for run in provenance.chain]
    if any(commit.endswith("+changes") for commit in commits):
        reasons.append("unnamed_code")
    return reasons


def _failed_audit(run: StoredRun) -> bool:
    """Return True if the audit of a run raised an alarm, unless training then ended with a certified policy."""
    alarm = run.results.get("audit/alarm")
    return alarm is not None and alarm.mean == 1 and run.settings["reward"]["audit"]["action"] != "stop"


def require_agreed(provenance: PublishedModel, reasons: Sequence[str], despite: Sequence[str]) -> None:
    """Raise DataError with every reason against publishing that the user has not accepted."""
    open_reasons = [name for name in reasons if name not in despite]
    if not open_reasons:
        return
    described = [f"{DESPITE[name]} ({name})" for name in open_reasons]
    words = "; ".join(described)
    raise DataError(
        f"{provenance.directory} is not published: {words}. To publish it anyway, with the reasons on its card, "
        f"add despite={','.join(dict.fromkeys([*despite, *open_reasons]))}"
    )


def _repeat_hint(provenance: PublishedModel) -> str:
    return f"repeat its command: {provenance.run.manifest.get('command') or 'see config.yaml'}"
