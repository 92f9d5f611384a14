"""Results of an audit, and their tables for the console."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

SPLITS = ("train", "test")
DROPPED = "dropped"
"""Prefix of checks that count rows dropped while loading, as in "dropped: empty chosen"."""
# statistics whose name matches are fractions and are printed as a percentage
SHARE = re.compile(r"wins|rate|share|accuracy|agrees")


@dataclass(frozen=True, slots=True)
class AuditResult:
    """Result of one check on one split.

    Attributes:
        check: name of the check.
        split: "train", "test" or "all".
        count: number of units that the check flagged.
        of: number of units that were checked.
        unit: kind of unit, such as "pairs" or "rows".
        why: effect of the problem on training or evaluation.
        example: location or text of the first flagged unit; "" if there is none.
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
        name: name of the corpus.
        findings: results of all checks that ran, including those that flagged nothing.
        statistics: "split/name" → value, such as lengths.
        skipped: check → what it needs to run.
    """

    name: str
    findings: list[AuditResult] = field(default_factory=list)
    statistics: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def count(self, check: str, split: str) -> int:
        """Return how many units `check` flagged in `split`. Raise KeyError if the check did not run on that split."""
        for result in self.findings:
            if (result.check, result.split) == (check, split):
                return result.count
        raise KeyError(f"{check!r} did not run on {split!r}")


def render(report: AuditReport) -> RenderableType:
    """Return the report for the console: failed checks, passed checks, skipped checks and statistics."""
    # dictionaries as ordered sets: a check has a result for each split
    failed = dict.fromkeys(result.check for result in report.findings if result.count)
    passed = dict.fromkeys(result.check for result in report.findings if result.check not in failed)
    # such problems are absent from the corpus only because loading dropped the rows: not the same as a clean source
    dropped = [check for check in passed if f"{DROPPED}: {check}" in failed]
    clean = [check for check in passed if check not in dropped]
    blocks: list[RenderableType] = [_findings_table(report, list(failed))]
    if clean:
        blocks.append(Text(f"Checked, none found: {', '.join(clean)}.", style="green"))
    if dropped:
        blocks.append(
            Text(f"Not in the corpus, because loading dropped such rows: {', '.join(dropped)}.", style="yellow")
        )
    for needs, checks in _group_by_need(report.skipped).items():
        blocks.append(Text(f"Not checked: {', '.join(checks)} (needs {needs}).", style="yellow"))
    return Group(*blocks, "", _statistics_table(report))


def _group_by_need(skipped: dict[str, str]) -> dict[str, list[str]]:
    """Return missing requirement → the checks that were skipped because of it."""
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
        findings = {result.split: result for result in report.findings if result.check == check}
        cells = [_format_count(findings.get(split)) for split in SPLITS]
        first = next(result for result in findings.values() if result.count)
        # as `Text`, because examples may contain markup of rich, such as [INST]
        texts = (check, *cells, first.why, first.example)
        table.add_row(*map(Text, texts))
    return table


def _format_count(finding: AuditResult | None) -> str:
    if finding is None:
        return "–"
    count = f"{finding.count:,} of {finding.of:,} {finding.unit}"
    return f"{count}\n{finding.share:.2%}"


def _statistics_table(report: AuditReport) -> Table:
    table = Table(title="Statistics", title_justify="left")
    table.add_column("name")
    keys = [key.partition("/") for key in report.statistics]  # split/name
    splits = dict.fromkeys(split for split, _, _ in keys)
    for split in splits:
        table.add_column(split, justify="right")
    for name in dict.fromkeys(name for _, _, name in keys):
        values = [report.statistics.get(f"{split}/{name}") for split in splits]
        cells = ["–" if value is None else _format_statistic(name, value) for value in values]
        table.add_row(name, *cells)
    return table


def _format_statistic(name: str, value: float) -> str:
    if SHARE.search(name):
        return f"{value:.1%}"
    # integers are counts
    return f"{value:,.0f}" if value == round(value) else f"{value:,.4g}"
