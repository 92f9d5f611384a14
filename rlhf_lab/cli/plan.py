"""`plan`: the memory of a recipe's stages; `plan table`: of published model sizes."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from rlhf_lab.config import compose
from rlhf_lab.config.overrides import literal
from rlhf_lab.config.schema import did_you_mean
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import write_text
from rlhf_lab.memory.device import Device, device, processes
from rlhf_lab.memory.devices import CARD_GB
from rlhf_lab.memory.fit import least_devices, smallest_change
from rlhf_lab.memory.plan import StagePlan, plan_stage
from rlhf_lab.memory.show import size, stage_lines, stage_table
from rlhf_lab.memory.table import MEASURED, grids, page
from rlhf_lab.stages import artifacts

USAGE = "python -m rlhf_lab plan +recipe=ppo model=gpt2 cards=24,80, or python -m rlhf_lab plan table"


def run(arguments: Sequence[str]) -> None:
    """`plan [+recipe=NAME override …] [cards=8,16,24]` or `plan table [to=FILE]`; `cards` are GB per GPU."""
    words = list(arguments)
    if words[:1] == ["table"]:
        return _table(words[1:])
    cards = _cards([word for word in words if word.startswith("cards=")])
    command = _checked([word for word in words if not word.startswith("cards=")])
    root = artifacts.plan(command.configs[0], command.recipe or "")
    found = device(root.config)
    plans = [plan_stage(stage, processes(stage.config, found), cuda=found.cuda) for stage in root.upstream()]
    for plan in plans:
        show_stage(plan, found)
    if any(plan.peak > (found.share(plan.processes) or plan.peak) for plan in plans):
        advice = smallest_change(root, found)
        fix = (
            f"{' '.join(advice.overrides)} ({size(advice.peak)})" if advice else "none of the settings that were tried"
        )
        console.print(f"all stages fit with: {fix}", markup=False, soft_wrap=True)
    if cards:
        console.print(card_table(root, cards))


def _checked(words: Sequence[str]) -> compose.Command:
    """The command of one job. Raises ConfigError for a sweep, which it says how to plan a job of."""
    names = [word.partition("=")[0] for word in words]
    misspelt = [name for name in names if get_close_matches(name, ["cards"], cutoff=0.75)]
    if misspelt:
        raise ConfigError([f"{name} is not an option of plan; did you mean cards?" for name in misspelt])
    bare = [word for word in words if "=" not in word and not word.startswith(("-", "~"))]
    if bare:
        known = ["table", *(f"+recipe={name}" for name in compose.recipes())]
        raise ConfigError([f"{word} is no setting{did_you_mean(f'+recipe={word}', known)}" for word in bare])
    command = compose.check_command(words)
    if not command.recipe:
        raise ConfigError(f"no recipe named; write for example {USAGE}")
    if len(command.configs) > 1:
        job = " ".join(f"{key}={literal(value)}" for key, value in command.jobs[0].items())
        raise ConfigError(
            f"{command.recipe} is a sweep of {len(command.configs)} jobs; plan one of them, the first with: "
            f"python -m rlhf_lab plan {' '.join(command.overrides)} {job}"
        )
    return command


def show_stage(plan: StagePlan, found: Device) -> None:
    """Table, phases and derivation."""
    console.print(stage_table(plan))
    for line in stage_lines(plan, found):
        console.print(f"  {escape(line)}", soft_wrap=True)
    console.print()


def card_table(root: artifacts.Stage, cards: Sequence[int]) -> Table:
    """Fewest GPUs of each size for every stage: as configured, and with everything that costs time alone."""
    table = Table(title="Fewest GPUs, fully sharded (powers of two up to 64; – more)", title_justify="left")
    table.add_column("stage", style="bold")
    for card in cards:
        table.add_column(f"{card} GB", justify="right")
    for stage in root.upstream():
        for frugal in (False, True):
            counts = [least_devices(stage, card * CARD_GB, frugal=frugal) for card in cards]
            table.add_row(stage.recipe if not frugal else "  frugal", *(str(count or "–") for count in counts))
    sizes = ", ".join(f"{card} GB = {card * CARD_GB / 2**30:.1f} GiB" for card in cards)
    meaning = "frugal: bfloat16, checkpointing, one row or pair at a time, 64 sampled replies"
    table.caption = f"{sizes} (as in runtime.memory_gib)\n{meaning}\n{MEASURED}"
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
