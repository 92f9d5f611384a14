"""`sandbox`: the levels of isolation that work here, what they cost, and what attacks on them come to."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.table import Table

from rlhf_lab.config.schema import did_you_mean
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError, LabError
from rlhf_lab.core.files import write_json
from rlhf_lab.packs.code.sandbox.groups import has_groups
from rlhf_lab.packs.code.sandbox.levels import LEVELS, NO_GROUP, STAYS_OPEN, WITH_GROUP
from rlhf_lab.packs.code.sandbox.outcome import Level
from rlhf_lab.packs.code.sandbox.probes.table import Finding, cost, probe_level
from rlhf_lab.packs.code.sandbox.sandbox import Sandbox, why_not
from rlhf_lab.packs.code.sandbox.settings import Sandboxing

OPTIONS = ("probes", "level", "to")


def run(arguments: Sequence[str]) -> None:
    """`sandbox [probes=true] [level=…] [to=FILE.json]`.

    Raises ConfigError when the command is wrong, and LabError when a probe escaped from the best level.
    """
    options = dict(item.partition("=")[::2] for item in arguments)
    if unknown := [name for name in options if name not in OPTIONS]:
        raise ConfigError([f"{name} is not an option of sandbox{did_you_mean(name, OPTIONS)}" for name in unknown])
    probes = yaml.safe_load(options.get("probes", "false"))
    if not isinstance(probes, bool):
        raise ConfigError(f"probes={options['probes']} must be true or false")
    chosen = options.get("level", "")
    if chosen and chosen not in LEVELS:
        raise ConfigError(f"level={chosen} is no level{did_you_mean(chosen, LEVELS)}; use one of {', '.join(LEVELS)}")
    levels = [chosen] if chosen else list(LEVELS)
    with console.status("trying the levels"):
        reasons = {level: why_not(level) for level in levels}
    working = [level for level in levels if not reasons[level]]
    costs = {level: cost(Sandbox(Sandboxing(level=level)), level) for level in working}
    console.print(_levels_table(reasons, costs))
    has_group = has_groups(Sandbox().limits)
    console.print(f"memory: {WITH_GROUP if has_group else NO_GROUP}")
    findings: dict[Level, list[Finding]] = {}
    if probes:
        with console.status("attacking"):
            findings = {level: probe_level(level) for level in working}
        console.print(_probes_table(findings))
        for level, found in findings.items():
            console.print(f"{level}: {sum(finding.escaped for finding in found)} of {len(found)} probes escape")
    if options.get("to"):
        write_json(Path(options["to"]), _as_values(reasons, costs, findings) | {"control_group": has_group})
    best = working[0] if working else None
    if best and best != "rlimits" and any(finding.escaped for finding in findings.get(best, [])):
        raise LabError(f"probes escape from {best}, the best level that works here")


def _levels_table(reasons: dict[Level, str], costs: dict[Level, tuple[float, float]]) -> Table:
    table = Table(title="levels of isolation", title_justify="left")
    for name in ("level", "works", "ms per run", "CPU ms per run", "does not stop"):
        table.add_column(name, overflow="fold")
    for level, reason in reasons.items():
        wall, processor = costs.get(level, (0.0, 0.0))
        numbers = (f"{wall:.0f}", f"{processor:.0f}") if level in costs else ("", "")
        table.add_row(level, reason or "yes", *numbers, STAYS_OPEN[level])
    return table


def _probes_table(findings: dict[Level, list[Finding]]) -> Table:
    """A row per probe, a column per level: what stopped it, or ESCAPED and what it reached."""
    table = Table(title="probes", title_justify="left")
    for name in ("about", "tries", *findings):
        table.add_column(name, overflow="fold")
    for row in zip(*findings.values(), strict=True):
        cells = [
            f"[red]ESCAPED[/red]: {_plain(finding.by)}" if finding.escaped else _plain(finding.by) for finding in row
        ]
        table.add_row(row[0].kind, row[0].name, *cells)
    return table


def _plain(text: str) -> str:
    return text.replace("[", "\\[")[:60]


def _as_values(
    reasons: dict[Level, str], costs: dict[Level, tuple[float, float]], findings: dict[Level, list[Finding]]
) -> dict[str, Any]:
    return {
        "levels": {
            level: {"works": not reason, "reason": reason, "wall_ms_cpu_ms": costs.get(level)}
            for level, reason in reasons.items()
        },
        "probes": [dataclasses.asdict(finding) for found in findings.values() for finding in found],
    }
