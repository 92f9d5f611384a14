"""`plan`: the memory of a recipe's stages; `plan table`: of published model sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from rlhf_lab import artifacts, compose
from rlhf_lab.analysis.memory_model import CARD_GB
from rlhf_lab.errors import ConfigError
from rlhf_lab.files import write_text
from rlhf_lab.planning.device import Device, device, processes
from rlhf_lab.planning.fit import least_devices, smallest_change
from rlhf_lab.planning.show import size, stage_lines, stage_table
from rlhf_lab.planning.stages import plan_stage
from rlhf_lab.planning.table import grids, page
from rlhf_lab.trackers.console import console

USAGE = "python -m rlhf_lab plan +recipe=ppo model=gpt2 cards=24,80, or python -m rlhf_lab plan table"


def run(arguments: Sequence[str]) -> None:
    """`plan [+recipe=NAME override …] [cards=8,16,24]` or `plan table [to=FILE]`; `cards` are GB per GPU."""
    words = list(arguments)
    if words[:1] == ["table"]:
        return _table(words[1:])
    cards = _cards([word for word in words if word.startswith("cards=")])
    command = compose.check_command([word for word in words if not word.startswith("cards=")])
    if not command.recipe:
        raise ConfigError(f"no recipe named; write for example {USAGE}")
    if len(command.configs) > 1:
        raise ConfigError(f"{command.recipe} is a sweep of {len(command.configs)} jobs; plan one of its settings")
    root = artifacts.plan(command.configs[0], command.recipe)
    found = device(root.config)
    for stage in root.upstream():
        show_stage(stage, found, root=stage.key == root.key)
    if cards:
        console.print(card_table(root, cards))


def show_stage(stage: artifacts.Stage, found: Device, *, root: bool) -> None:
    """Table, phases, derivation, and the smallest change that makes it fit where it does not."""
    count = processes(stage.config, found)
    plan = plan_stage(stage, count, cuda=found.cuda)
    console.print(stage_table(plan))
    lines = stage_lines(plan, found)
    share = found.share(count)
    if share is not None and plan.peak > share:
        change = smallest_change(stage, found, root=root)
        fix = "no combination of settings that was tried" if change is None else f"{' '.join(change[0])}"
        lines.insert(1, f"fits with: {fix}" + (f" (peak {size(change[1].peak)})" if change else ""))
    for line in lines:
        console.print(f"  {escape(line)}", soft_wrap=True)
    console.print()


def card_table(root: artifacts.Stage, cards: Sequence[int]) -> Table:
    """Fewest GPUs of each size for every stage: as configured, and with everything that costs time alone."""
    table = Table(title="Fewest GPUs, fully sharded (in powers of two; – none)", title_justify="left")
    table.add_column("stage", style="bold")
    for card in cards:
        table.add_column(f"{card} GB", justify="right")
    for stage in root.upstream():
        for frugal in (False, True):
            counts = [least_devices(stage, card * CARD_GB, frugal=frugal) for card in cards]
            table.add_row(stage.recipe if not frugal else "  frugal", *(str(count or "–") for count in counts))
    table.caption = "frugal: bfloat16, checkpointing, one row or pair at a time, 64 sampled replies"
    table.caption_justify = "left"
    return table


def _cards(words: Sequence[str]) -> list[int]:
    values = words[-1].partition("=")[2].split(",") if words else []
    if not all(value.isdigit() and int(value) for value in values):
        raise ConfigError(f"{words[-1]} is not a list of GB per GPU; write cards=8,16,24,40,80,141")
    return [int(value) for value in values]


def _table(words: Sequence[str]) -> None:
    target = next((word.partition("=")[2] for word in words if word.startswith("to=")), "")
    if len(words) > bool(target):
        raise ConfigError(f"plan table takes to=FILE and nothing else, not {' '.join(words)}")
    if target:
        write_text(Path(target), page())
        console.print(f"table: {target}")
        return
    for grid in grids():
        console.print(grid.rich())
