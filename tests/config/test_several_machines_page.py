"""The commands of docs/several_machines.md are runs of this version, with the settings that the page explains."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from rlhf_lab.config import command_line, registry

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "several_machines.md").read_text(encoding="utf-8")
COMMANDS = [line for line in PAGE.splitlines() if "+recipe=" in line and not line.startswith(("#", "|", "`"))]


def overrides(command: str) -> list[str]:
    words = shlex.split(command)
    start = next(i for i, word in enumerate(words) if word.startswith("+recipe="))
    return words[start:]


@pytest.mark.parametrize("number", range(9))
def test_a_command_composes(number: int) -> None:
    command = command_line.check_command([word for word in overrides(COMMANDS[number]) if not word.startswith("hydra")])
    assert command.recipe in COMMANDS[number]
    kinds = {registry.kind_of("sharding", config.sharding) for config in command.configs}
    is_sharded = command.study is None and "accelerate" not in COMMANDS[number]
    assert kinds == ({"fsdp"} if is_sharded else {"none"})
