"""`ablations` and `transfer`: several studies, one after another, and one page about all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_lab.cli.recipe_command import RecipeCommand, RecipeCommands
from rlhf_lab.config import command_line, compose, inventory
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.studies.replication import list_in_words
from rlhf_lab.sweeps.sweep import study_dir

SIZES = {"smoke": "size=smoke", "quick": "study.size=quick", "full": ""}
"""Size of the command → override that gives its studies this size."""


@dataclass(frozen=True)
class StudySet:
    """Studies that a command runs.

    Attributes:
        command: name of the command, and of the directory of its page.
        title: title of the page.
        recipes: studies in the order in which they run. Recipes of a pack that is not installed are left out.
        has_table: True if the studies compare the same levels by the same metric, so that one table shows all of them.
    """

    command: str
    title: str
    recipes: tuple[str, ...]
    has_table: bool = False


ABLATIONS = StudySet(
    "ablations", "Ablations", ("study/ensemble_lambda", "study/buffers", "study/mix_ratio", "study/reward_weights")
)
TRANSFER = StudySet(
    "transfer",
    "One reward design in several domains",
    ("study/reward_transfer_text", "study/reward_transfer", "study/reward_transfer_speech"),
    has_table=True,
)


def ablations_command(arguments: Sequence[str]) -> RecipeCommands:
    """`ablations [size=smoke | quick | full] [override …]`: run the four ablations of the design, and write one page.

    They are study/ensemble_lambda (weight on the disagreement of an ensemble), study/buffers (buffers of iterative
    DPO), study/mix_ratio (mixtures of pairs) and study/reward_weights (weights of the reward), one after another. The
    default size is full, about 90 minutes on 2 cores; quick takes about 30. Overrides, such as study.processes=1 or
    seed=0,1, apply to each of them. The same command continues after Ctrl-C. outputs/ablations/SIZE/report.html has the
    answer, the claims and the figure of each study; report.md has the same text.
    """
    return prepare(ABLATIONS, arguments)


def transfer_command(arguments: Sequence[str]) -> RecipeCommands:
    """`transfer [size=smoke | quick | full] [override …]`: compare reward designs in several domains; one table.

    The designs are hand weights on named criteria, calibrated and fitted weights, and a learned reward model, on three
    volumes of labels. The domains are assistant responses, code review and, with the pack of speech, clips: the studies
    reward_transfer_text, reward_transfer and reward_transfer_speech. The default size is full, about 90 minutes on
    2 cores; quick takes about 25. Overrides, such as study.processes=1 or seed=0,1, apply to each of them. The same
    command continues after Ctrl-C. outputs/transfer/SIZE/report.html begins with the table; report.md has the same.
    """
    return prepare(TRANSFER, arguments)


def prepare(studies: StudySet, arguments: Sequence[str]) -> RecipeCommands:
    """Check the commands of all studies, and return them with the function that writes their page.

    Args:
        arguments: `size=…` and overrides of every study.
    """
    sizes = [word.partition("=")[2] for word in arguments if word.startswith("size=")]
    overrides = [word for word in arguments if not word.startswith("size=")]
    size = sizes[-1] if sizes else "full"
    if size not in SIZES:
        raise ConfigError(f"size={size} is not one of {', '.join(SIZES)}")
    if wrong := [word for word in overrides if word.startswith(("-", "+recipe="))]:
        raise ConfigError(f"{' '.join(wrong)}: {studies.command} takes a size and overrides of settings; remove it")
    installed = [name for name in studies.recipes if name in inventory.recipes()]
    notes = _notes(studies, installed, size)
    for note in notes:
        console.inform(f"note: {note}")
    commands = [RecipeCommand(_words(name, size, overrides)) for name in installed]
    # All of them are checked before the first one starts.
    checked = [command_line.check_command(command.words) for command in commands]
    directories = {name: study_dir(command) for name, command in zip(installed, checked, strict=True)}
    page_dir = Path(checked[0].configs[0].outputs) / studies.command / size
    return RecipeCommands(commands, lambda: _write_page(studies, page_dir, size, directories, notes))


def _words(name: str, size: str, overrides: Sequence[str]) -> list[str]:
    """Return the command of one study at a size."""
    size_word = SIZES[size] if size != "quick" or _has_quick_size(name) else ""
    return [f"+recipe={name}", *filter(None, [size_word]), *overrides]


def _has_quick_size(name: str) -> bool:
    """Return True if a study has a quick size."""
    return bool(compose.recipe_values(name)["study"].get("quick"))


def _notes(studies: StudySet, installed: Sequence[str], size: str) -> list[str]:
    """Return notes on the studies that are left out, and on those that run in full instead of at the quick size."""
    notes = []
    if missing := [name for name in studies.recipes if name not in installed]:
        notes.append(f"{list_in_words(missing)} is left out: its pack is not installed.")
    if size == "quick" and (without := [name for name in installed if not _has_quick_size(name)]):
        notes.append(f"{list_in_words(without)} has no quick size and runs in full.")
    return notes


def _write_page(
    studies: StudySet, directory: Path, size: str, directories: Mapping[str, Path], notes: Sequence[str]
) -> None:
    """Write the page of all studies, complete or not, and print its path."""
    from rlhf_lab.reports.study.overview import write_overview  # imports the figures

    title = f"{studies.title}, {size} size"
    page = write_overview(directory, title, directories, " ".join(notes), has_table=studies.has_table)
    console.print(f"{studies.command}  {page}")
