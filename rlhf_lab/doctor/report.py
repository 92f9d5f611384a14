"""Output of the check results: a table, and JSON for a bug report."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from rlhf_lab import __version__
from rlhf_lab.doctor.findings import CheckResult
from rlhf_lab.doctor.installation import installed

MARKS = {"pass": ("✓", "green"), "fail": ("✗", "bold red"), "skip": ("–", "dim")}
VERSIONS = ("torch", "transformers", "tokenizers", "numpy", "hydra-core")


def table(findings: Sequence[CheckResult]) -> Table:
    """Return the table check · result · measured (with the hint below) · tolerance, with a section per group."""
    result = Table(box=None, padding=(0, 1), header_style="bold")
    result.add_column("check", no_wrap=True)
    result.add_column("", no_wrap=True)
    result.add_column("measured → what to do", overflow="fold")
    result.add_column("tolerance")
    group = ""
    for check_result in findings:
        if check_result.group != group:
            group = check_result.group
            result.add_row(Text(group, "bold"))
        mark, style = MARKS[check_result.status]
        # Text objects, because measured values may contain Rich's markup characters.
        text = Text(check_result.measured)
        if check_result.hint:
            text.append(f"\n→ {check_result.hint}", style if check_result.status == "fail" else "dim")
        result.add_row(f"  {check_result.name}", Text(mark, style), text, Text(check_result.tolerance))
    return result


def summary(findings: Sequence[CheckResult]) -> str:
    count = {status: sum(result.status == status for result in findings) for status in MARKS}
    return f"{count['pass']} passed, {count['fail']} failed, {count['skip']} skipped"


def as_values(findings: Sequence[CheckResult], what: str) -> dict[str, Any]:
    """Return the report as plain values: versions and results, without environment variables or the home directory.

    Args:
        what: description of the examined model, or "".
    """
    fields = ("group", "name", "status", "measured", "tolerance", "hint")
    checks = [{name: getattr(result, name) for name in fields} for result in findings]
    values = {
        "rlhf_lab": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {name: installed(name) for name in VERSIONS},
        "subject": what,
        "checks": checks,
    }
    return _without_home(values)


def _without_home(value: Any) -> Any:
    """Replace the home directory by "~" in every string of nested values, because reports are published."""
    if isinstance(value, dict):
        return {key: _without_home(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_home(item) for item in value]
    home = Path.home()
    if not isinstance(value, str) or home == Path(home.anchor):  # for root in a container, home may be "/"
        return value
    return re.sub(rf"(?<![\w./-]){re.escape(str(home))}(?![\w.-])", "~", value)
