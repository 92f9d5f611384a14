"""Sub-command `sandbox`: working levels of isolation, their cost, and the results of attacks on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from rlhf_lab.config.schema import did_you_mean
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError, LabError
from rlhf_lab.core.files import write_json
from rlhf_lab.core.yaml_files import parse_yaml
from rlhf_lab.packs.code.sandbox.groups import has_groups
from rlhf_lab.packs.code.sandbox.levels import LEVELS, NO_GROUP, STAYS_OPEN, WITH_GROUP
from rlhf_lab.packs.code.sandbox.outcome import Level
from rlhf_lab.packs.code.sandbox.probes.table import ProbeResult, cost, probe_level
from rlhf_lab.packs.code.sandbox.sandbox import Sandbox, why_not
from rlhf_lab.packs.code.sandbox.settings import Sandboxing

OPTIONS = ("probes", "level", "to")


def run(arguments: Sequence[str]) -> None:
    """Run `sandbox`. Raises ConfigError for an invalid command, and LabError if a probe escapes from the best level."""
    options = dict(item.partition("=")[::2] for item in arguments)
    if unknown := [name for name in options if name not in OPTIONS]:
        raise ConfigError([f"{name} is not an option of sandbox{did_you_mean(name, OPTIONS)}" for name in unknown])
    probes = parse_yaml(options.get("probes", "false"), "probes")
    if not isinstance(probes, bool):
        raise ConfigError(f"probes={options['probes']} must be true or false")
    chosen = options.get("level", "")
    if chosen and chosen not in LEVELS:
        raise ConfigError(
            f"level={chosen} is not a level{did_you_mean(chosen, LEVELS)}; use one of {', '.join(LEVELS)}"
        )
    levels = [chosen] if chosen else list(LEVELS)
    with console.status("trying the levels"):
        reasons = {level: why_not(level) for level in levels}
    working = [level for level in levels if not reasons[level]]
    sandboxes = {level: Sandbox(Sandboxing(level=level)) for level in working}
    costs = {level: cost(sandbox, level) for level, sandbox in sandboxes.items()}
    console.print(_levels_table(reasons, costs))
    has_group = has_groups(Sandbox().limits)
    console.print(f"memory: {WITH_GROUP if has_group else NO_GROUP}")
    findings: dict[Level, list[ProbeResult]] = {}
    if probes:
        with console.status("attacking"):
            findings = {level: probe_level(level) for level in working}
        console.print(_probes_table(findings))
        for level, results in findings.items():
            escaped_count = sum(result.escaped for result in results)
            console.print(f"{level}: {escaped_count} of {len(results)} probes escape")
    if options.get("to"):
        tried = {
            level: {"works": not reason, "reason": reason, "wall_ms_cpu_ms": costs.get(level)}
            for level, reason in reasons.items()
        }
        attacks = [dataclasses.asdict(result) for found in findings.values() for result in found]
        write_json(Path(options["to"]), {"levels": tried, "probes": attacks, "control_group": has_group})
    if not working or working[0] == "rlimits":  # probes are expected to escape from `rlimits`, which does not isolate
        return
    best = working[0]
    if any(result.escaped for result in findings.get(best, [])):
        raise LabError(f"probes escape from {best}, the best working level; do not run untrusted code on this machine")


def _levels_table(reasons: dict[Level, str], costs: dict[Level, tuple[float, float]]) -> Table:
    table = Table(title="levels of isolation", title_justify="left")
    for name in ("level", "works", "ms per run", "CPU ms per run", "does not stop"):
        table.add_column(name, overflow="fold")
    for level, reason in reasons.items():
        wall, processor = costs.get(level, (0.0, 0.0))
        numbers = (f"{wall:.0f}", f"{processor:.0f}") if level in costs else ("", "")
        table.add_row(level, reason or "yes", *numbers, STAYS_OPEN[level])
    return table


def _probes_table(findings: dict[Level, list[ProbeResult]]) -> Table:
    """Return a table with a row per probe and a column per level: what stopped it, or ESCAPED and what it reached."""
    table = Table(title="probes", title_justify="left")
    for name in ("about", "tries", *findings):
        table.add_column(name, overflow="fold")
    for row in zip(*findings.values(), strict=True):
        prefixes = ["[red]ESCAPED[/red]: " if result.escaped else "" for result in row]
        cells = [prefix + _to_plain(result.by) for prefix, result in zip(prefixes, row, strict=True)]
        table.add_row(row[0].kind, row[0].name, *cells)
    return table


def _to_plain(text: str) -> str:
    """Escape the markup of rich, because a probe controls the text, and shorten it."""
    return text.replace("[", "\\[")[:60]
