"""Runs the commands of a page of the documentation up to where training begins."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.utils import get_args_parser
from support import command_inside

from rlhf_lab import main
from rlhf_lab.cli.table import description_of
from rlhf_lab.config import command_line, root
from rlhf_lab.stages import artifacts, preflight
from rlhf_lab.sweeps import search, sweep

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PLACEHOLDER = re.compile(r"…|\.\.\.|\b(NAME|FOLDER|DIR|FILE|POLICY)\b")

LOOKING = {"list", "help", "--help", "--cfg", "--version", "plan", "explain", ""}
"""Words of commands that read something and start nothing."""
RUNS_ELSEWHERE = (
    *("report", "monitor", "rescore", "compare", "dashboard", "features", "publish"),
    *("judge", "label", "leaderboard", "safety", "canaries", "gate", "export", "sandbox", "parler", "vllm"),
)
"""Sub-commands that need what other commands leave behind; of these only the names of options are checked."""


def commands(page: str) -> list[str]:
    """Return every `python -m rlhf_lab …` line of a page's code without a placeholder."""
    text = (ROOT / page).read_text(encoding="utf-8")
    code = re.findall(r"^```\w*\n(.*?)^```", text.replace("\\\n", " "), re.S | re.M)
    # Commands may stand behind variables of the environment: `CUDA_VISIBLE_DEVICES=0 python -m rlhf_lab …`.
    lines = [re.sub(r"^(\$ )?([A-Z_]+=\S* )*", "", line.strip()) for block in code for line in block.splitlines()]
    lines += re.findall(r"`(python -m rlhf_lab[^`]*)`", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))
    found = [line for line in lines if line.startswith("python -m rlhf_lab")]
    return [line for line in found if not PLACEHOLDER.search(line)]


def write_own_recipe(directory: Path) -> None:
    """The directory `mine` with the recipe that the README shows."""
    shown = re.search(r"`mine/(recipe/\w+\.yaml)`:\n\n```yaml\n(.*?)```", README, re.S)
    assert shown, "README.md shows no recipe of one's own"
    path = directory / "mine" / shown[1]
    path.parent.mkdir(parents=True)
    path.write_text(shown[2], encoding="utf-8")


def before_training(patch: pytest.MonkeyPatch) -> list[str]:
    """Run commands only up to the start of a stage or of Hydra's jobs. Return a list of what started."""
    begun: list[str] = []

    def begin_stage(stage: artifacts.Stage, started: float) -> tuple[int, dict[str, Any]]:
        begun.append(stage.recipe)
        return 0, {}

    def begin_jobs(arguments: Sequence[str]) -> int:
        flags = get_args_parser().parse_args(list(arguments))  # what Hydra does first
        assert flags.multirun or flags.help
        begun.extend(flags.overrides)
        return 0

    def begin_search(command: command_line.Command, config_dir: str | None, run_stage: Any) -> int:
        begun.extend(command.names)
        return 0

    patch.setattr(main, "run_stage", begin_stage)
    patch.setattr(search, "run", begin_search)
    # The models and data that a page names are the reader's and not there: nothing looks into them.
    patch.setattr(preflight, "check", lambda stages: None)
    patch.setattr(artifacts.Stage, "result", lambda stage: None)
    patch.setattr(main, "_run_hydra", begin_jobs)
    patch.setattr(sweep, "write_results", lambda directory, jobs: 0)
    return begun


def check_commands(page: str, directory: Path, begun: list[str]) -> int:
    """Run every command of a page up to where training begins. Returns their number.

    Args:
        directory: working directory of the commands.
        begun: as `before_training` returns it.
    """
    checked = 0
    for line in commands(page):
        arguments = shlex.split(line, comments=True)[3:]
        first = arguments[0] if arguments else ""
        if "+recipie=x" in arguments:
            continue  # a mistake on purpose
        checked += 1
        if first in RUNS_ELSEWHERE and "--help" not in arguments:
            options = re.findall(r"^--[a-z-]+|^[\w.]+(?==)", "\n".join(arguments[1:]), re.M)
            unknown = [name for name in options if name not in description_of(first) and not is_setting(name)]
            assert not unknown, f"{page}: {line}: {first} has no option {', '.join(unknown)}"
            continue
        if first in ("audit", "doctor"):  # they start with the data, or with training
            overrides = [word for word in arguments[1:] if not word.startswith(("to=", "against="))]
            named = any("recipe=" in word for word in overrides)
            # An audit takes data that nothing can be trained on, too.
            recipe = "+recipe=compare_policies" if first == "audit" else "+recipe=sft"
            command_line.check_command(overrides if named else [*overrides, recipe])
            continue
        if "table" in arguments:
            continue  # of `plan`: minutes
        begun.clear()
        status, printed = command_inside(directory, *arguments)
        assert status == 0, f"{page}: {line}\n{printed}"
        assert begun or first in LOOKING or LOOKING & {*arguments}, f"{page}: {line} starts nothing"
    return checked


def is_setting(name: str) -> bool:
    """Return True if a word of a sub-command names a group or section of the config, such as judge.model."""
    return name.partition(".")[0] in root.names()
