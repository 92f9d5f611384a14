"""What the examination found: one table, and the same as JSON for a bug report."""

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
    out = Table(box=None, padding=(0, 1), header_style="bold")
    out.add_column("check", no_wrap=True)
    out.add_column("", no_wrap=True)
    out.add_column("measured → what to do", overflow="fold")
    out.add_column("tolerance")
    group = ""
    for finding in findings:
        if finding.group != group:
            group = finding.group
            out.add_row(Text(group, "bold"))
        mark, style = MARKS[finding.status]
        said = Text(finding.measured)
        if finding.advice:
            said.append(f"\n→ {finding.advice}", style if finding.status == "fail" else "dim")
        out.add_row(f"  {finding.name}", Text(mark, style), said, Text(finding.tolerance))
    return out


def summary(findings: Sequence[Finding]) -> str:
    """How many checks passed, failed, and were skipped."""
    count = {status: sum(f.status == status for f in findings) for status in MARKS}
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
            {name: getattr(f, name) for name in ("group", "name", "status", "measured", "tolerance", "advice")}
            for f in findings
        ],
    }
    return _without_home(values)


def _without_home(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_home(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_home(item) for item in value]
    home = Path.home()
    if not isinstance(value, str) or home == Path(home.anchor):
        return value
    return re.sub(rf"(?<![\w./-]){re.escape(str(home))}(?![\w.-])", "~", value)
