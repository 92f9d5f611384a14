"""`plan`: memory of a recipe's stages; `plan table`: memory of published model sizes."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from rlhf_lab.config import command_line, inventory
from rlhf_lab.config.overrides import literal
from rlhf_lab.config.schema import did_you_mean
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import write_text
from rlhf_lab.core.progress import tracked
from rlhf_lab.memory.devices import CARD_GB, Device, device, processes
from rlhf_lab.memory.fit import min_devices, smallest_change
from rlhf_lab.memory.plan import StagePlan, plan_stage
from rlhf_lab.memory.show import size, stage_lines, stage_table
from rlhf_lab.memory.table import MEASURED, grids, page
from rlhf_lab.stages import artifacts

USAGE = "python -m rlhf_lab plan +recipe=ppo model=gpt2 cards=24,80, or python -m rlhf_lab plan table"


def run(arguments: Sequence[str]) -> None:
    """Run `plan [+recipe=NAME override …] [cards=8,16,24]` (GB per GPU) or `plan table [to=FILE]`."""
    words = list(arguments)
    if words[:1] == ["table"]:
        return _print_size_table(words[1:])
    card_words = [word for word in words if word.startswith("cards=")]
    cards = _parse_cards(card_words)
    command = _check_single_job([word for word in words if word not in card_words])
    root = artifacts.plan(command.configs[0], command.recipe or "")
    machine = device(root.config)
    plans = []
    for stage in tracked(list(root.upstream()), "stages"):
        plans.append(plan_stage(stage, processes(stage.config, machine), cuda=machine.cuda))
    for plan in plans:
        show_stage(plan, machine)
    # If the memory size is unknown, share() is None and every plan counts as fitting.
    if any(plan.peak > (machine.share(plan.processes) or plan.peak) for plan in plans):
        console.inform("not all stages fit; searching for settings with which they do")
        # Settings that cost only time are tried before those that change the arithmetic.
        hint = smallest_change(root, machine)
        fix = "none of the settings that were tried"
        if hint:
            fix = f"{' '.join(hint.overrides)} ({size(hint.peak)})"
        console.print(f"all stages fit with: {fix}")
    if cards:
        console.print(card_table(root, cards))


def _check_single_job(words: Sequence[str]) -> command_line.Command:
    """Return the checked command of one job. For a sweep, raise ConfigError with the command for its first job."""
    names = [word.partition("=")[0] for word in words]
    # An unknown name with = would be reported as an unknown setting, which hides the misspelt option.
    misspelt = [name for name in names if get_close_matches(name, ["cards"], cutoff=0.75)]
    if misspelt:
        raise ConfigError([f"{name} is not an option of plan; did you mean cards?" for name in misspelt])
    bare = [word for word in words if "=" not in word and not word.startswith(("-", "~"))]
    if bare:
        possible = ["table", *(f"+recipe={name}" for name in inventory.recipes())]
        hints = {word: did_you_mean(f"+recipe={word}", possible) for word in bare}
        raise ConfigError([f"{word} is not a setting{hint}" for word, hint in hints.items()])
    command = command_line.check_command(words)
    if not command.recipe:
        raise ConfigError(f"plan needs a recipe; write for example {USAGE}")
    if len(command.configs) > 1:
        job = " ".join(f"{key}={literal(value)}" for key, value in command.jobs[0].items())
        if command.study and command.study.until:
            job += " study.until=null"  # otherwise the command plans further seeds until all claims are decided
        raise ConfigError(
            f"{command.recipe} is a sweep of {len(command.configs)} jobs; plan one of them, the first with: "
            f"python -m rlhf_lab plan {' '.join(command.overrides)} {job}"
        )
    return command


def show_stage(plan: StagePlan, machine: Device) -> None:
    """Print a stage's memory: the table, the phases, and the derivation of the numbers; one line if it has no model."""
    if plan.has_models:
        console.print(stage_table(plan))
    else:
        console.print(f"[bold]{escape(plan.recipe)}[/bold]", markup=True)
    for line in stage_lines(plan, machine):
        console.print(f"  {line}")
    console.print()


def card_table(root: artifacts.Stage, cards: Sequence[int]) -> Table:
    """Return the minimum number of GPUs of each size per stage: as configured, and with all memory-saving settings."""
    table = Table(title="Minimum number of GPUs, fully sharded (powers of two up to 64; – more)", title_justify="left")
    table.add_column("stage", style="bold")
    for card in cards:
        table.add_column(f"{card} GB", justify="right")
    for stage in tracked(list(root.upstream()), "numbers of GPUs"):
        for frugal in (False, True):
            # The second row per stage shows how far settings that only cost time would help.
            counts = [min_devices(stage, card * CARD_GB, frugal=frugal) for card in cards]
            label = "  frugal" if frugal else stage.recipe
            table.add_row(label, *(str(count or "–") for count in counts))
    sizes = ", ".join(f"{card} GB = {card * CARD_GB / 2**30:.1f} GiB" for card in cards)
    meaning = "frugal: bfloat16, checkpointing, one row or pair at a time, 64 sampled responses"
    table.caption = f"{sizes} (as in runtime.memory_gib)\n{meaning}\n{MEASURED}"
    table.caption_justify = "left"
    return table


def _parse_cards(words: Sequence[str]) -> list[int]:
    """Return the GB per GPU of `cards=8,24`; if there are several such arguments, the last one counts."""
    values = words[-1].partition("=")[2].split(",") if words else []
    if not all(value.isdigit() and int(value) for value in values):
        raise ConfigError(f"{words[-1]} is not a list of GB per GPU; write cards=8,16,24,40,80,141")
    return [int(value) for value in values]


def _print_size_table(words: Sequence[str]) -> None:
    """Run `plan table`: print the tables of published model sizes, or write them to a file."""
    target = next((word.partition("=")[2] for word in words if word.startswith("to=")), "")
    if len(words) > bool(target):
        raise ConfigError(f"plan table accepts only to=FILE, not {' '.join(words)}")
    tables = grids()
    if target:
        write_text(Path(target), page(tables))
        console.print(f"table: {target}")
        return
    for grid in tables:
        console.print(grid.rich())
