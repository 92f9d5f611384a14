"""The result of an audit, and how it is shown."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

SPLITS = ("train", "test")
DROPPED = "dropped"
"""Begins the name of a check that counts rows which loading left out, as in "dropped: empty chosen"."""
SHARE = re.compile(r"wins|rate|share|accuracy|agrees")


@dataclass(frozen=True, slots=True)
class Finding:
    """One check on one split.

    Attributes:
        check: what is counted.
        split: "train", "test" or "all".
        count, of: how many were found among how many `unit`s.
        why: what it does to training or evaluation.
        example: where or what the first one is; "" when there is none.
    """

    check: str
    split: str
    count: int
    of: int
    unit: str
    why: str
    example: str = ""

    @property
    def share(self) -> float:
        """count / of; 0 for an empty split."""
        return self.count / self.of if self.of else 0.0


@dataclass(slots=True)
class AuditReport:
    """Result of `audit`.

    Attributes:
        findings: every check that ran, also those that found nothing.
        statistics: "split/name" → value (lengths, longer wins).
        skipped: check → what it needs to run.
    """

    name: str
    findings: list[Finding] = field(default_factory=list)
    statistics: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def count(self, check: str, split: str) -> int:
        """How often `check` was found in `split`. Raises KeyError when it did not run there."""
        for finding in self.findings:
            if (finding.check, finding.split) == (check, split):
                return finding.count
        raise KeyError(f"{check!r} did not run on {split!r}")


def render(report: AuditReport) -> RenderableType:
    """The report for the console: what was found, what was not, the statistics, and which checks did not run."""
    failed = list(dict.fromkeys(finding.check for finding in report.findings if finding.count))
    passed = dict.fromkeys(finding.check for finding in report.findings if finding.check not in failed)
    dropped = [check for check in passed if f"{DROPPED}: {check}" in failed]
    clean = [check for check in passed if check not in dropped]
    blocks: list[RenderableType] = [_findings_table(report, failed)]
    if clean:
        blocks.append(Text(f"Checked, none found: {', '.join(clean)}.", style="green"))
    if dropped:
        blocks.append(Text(f"None left in what is kept, loading dropped them: {', '.join(dropped)}.", style="yellow"))
    for needs, checks in _group_by_need(report.skipped).items():
        blocks.append(Text(f"Not checked: {', '.join(checks)} (needs {needs}).", style="yellow"))
    return Group(*blocks, "", _statistics_table(report))


def _group_by_need(skipped: dict[str, str]) -> dict[str, list[str]]:
    """What is needed → the checks that were skipped for want of it."""
    groups: dict[str, list[str]] = {}
    for check, needs in skipped.items():
        groups.setdefault(needs, []).append(check)
    return groups


def _findings_table(report: AuditReport, checks: Iterable[str]) -> Table:
    table = Table(title=f"Audit of {report.name}", title_justify="left")
    table.add_column("found")
    for split in SPLITS:
        table.add_column(split, justify="right")
    for heading in ("why it matters", "first example"):
        table.add_column(heading, overflow="fold")
    for check in checks:
        findings = {finding.split: finding for finding in report.findings if finding.check == check}
        cells = [_format_count(findings.get(split)) for split in SPLITS]
        first = next(finding for finding in findings.values() if finding.count)
        table.add_row(*map(Text, (check, *cells, first.why, first.example)))
    return table


def _format_count(finding: Finding | None) -> str:
    if finding is None:
        return "–"
    return f"{finding.count:,} of {finding.of:,} {finding.unit}\n{finding.share:.2%}"


def _statistics_table(report: AuditReport) -> Table:
    table = Table(title="Statistics", title_justify="left")
    table.add_column("name")
    splits = list(dict.fromkeys(name.partition("/")[0] for name in report.statistics))
    for split in splits:
        table.add_column(split, justify="right")
    for name in dict.fromkeys(name.partition("/")[2] for name in report.statistics):
        values = [report.statistics.get(f"{split}/{name}") for split in splits]
        cells = ["–" if value is None else _format_statistic(name, value) for value in values]
        table.add_row(name, *cells)
    return table


def _format_statistic(name: str, value: float) -> str:
    if SHARE.search(name):
        return f"{value:.1%}"
    return f"{value:,.0f}" if value == round(value) else f"{value:,.4g}"
