"""The findings of an examination as one table, and as JSON for a bug report."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from rlhf_lab import __version__
from rlhf_lab.doctor.findings import Finding
from rlhf_lab.doctor.installation import installed

MARKS = {"pass": ("✓", "green"), "fail": ("✗", "bold red"), "skip": ("–", "dim")}
VERSIONS = ("torch", "transformers", "tokenizers", "numpy", "hydra-core")


def table(findings: Sequence[Finding]) -> Table:
    """check · result · measured, and below it what to do · tolerance, a section for each group."""
    result = Table(box=None, padding=(0, 1), header_style="bold")
    result.add_column("check", no_wrap=True)
    result.add_column("", no_wrap=True)
    result.add_column("measured → what to do", overflow="fold")
    result.add_column("tolerance")
    group = ""
    for finding in findings:
        if finding.group != group:
            group = finding.group
            result.add_row(Text(group, "bold"))
        mark, style = MARKS[finding.status]
        text = Text(finding.measured)
        if finding.advice:
            text.append(f"\n→ {finding.advice}", style if finding.status == "fail" else "dim")
        result.add_row(f"  {finding.name}", Text(mark, style), text, Text(finding.tolerance))
    return result


def summary(findings: Sequence[Finding]) -> str:
    """How many checks passed, failed, and were skipped."""
    count = {status: sum(finding.status == status for finding in findings) for status in MARKS}
    return f"{count['pass']} passed, {count['fail']} failed, {count['skip']} skipped"


def as_values(findings: Sequence[Finding], what: str) -> dict[str, Any]:
    """The report as plain values: versions and findings; no environment variable, home directory spelled "~".

    Args:
        what: the model that was examined, or "".
    """
    values = {
        "rlhf_lab": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {name: installed(name) for name in VERSIONS},
        "subject": what,
        "checks": [
            {name: getattr(finding, name) for name in ("group", "name", "status", "measured", "tolerance", "advice")}
            for finding in findings
        ],
    }
    return _without_home(values)


def _without_home(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_home(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_home(item) for item in value]
    home = Path.home()
    if not isinstance(value, str) or home == Path(home.anchor):  # as root of a container home may be "/"
        return value
    return re.sub(rf"(?<![\w./-]){re.escape(str(home))}(?![\w.-])", "~", value)
