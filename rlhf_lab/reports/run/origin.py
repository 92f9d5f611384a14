"""Origin of a run: its data, the stages that it starts from, its config and the versions of the code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_lab.reports.sections import PageSection
from rlhf_lab.results.rundir import StoredRun

MAX_CONFIG = 12_000
"""Maximum number of characters of config.yaml on a page."""


def origin(run: StoredRun) -> PageSection | None:
    """Return the section on the data, with dropped rows, and on earlier stages; None for a run that names neither."""
    data = run.manifest.get("data") or {}
    stages = run.manifest.get("needs") or {}
    needs = [(role, need) for role, need in stages.items() if isinstance(need, Mapping)]
    if not data and not needs:
        return None
    values = {"data": data, "drops": data_reports(data.get("report")), "needs": needs}
    return PageSection("Origin", template=f"{__package__}:origin.html.j2", values=values)


def data_reports(report: object) -> list[dict[str, Any]]:
    """Return the counts of kept and dropped rows, one entry per split."""
    if not isinstance(report, Mapping):
        return []
    # A report without splits has its counts at the top level.
    splits = {"all": report} if "rows" in report else report
    entries = []
    for split, counts in splits.items():
        if isinstance(counts, Mapping) and "rows" in counts:
            entries.append(
                {
                    "split": split,
                    "rows": counts["rows"],
                    "kept": counts.get("kept"),
                    "dropped": dict(counts.get("dropped") or {}),
                    "noted": dict(counts.get("noted") or {}),
                }
            )
    return entries


def settings(run: StoredRun) -> PageSection:
    """Return the collapsed section with the resolved config and versions."""
    config = run.config[:MAX_CONFIG]
    if len(run.config) > MAX_CONFIG:
        config += "\n… (cut; see config.yaml)"
    values = {"config": config, "versions": dict(run.manifest.get("versions") or {})}
    return PageSection(template=f"{__package__}:settings.html.j2", values=values)
