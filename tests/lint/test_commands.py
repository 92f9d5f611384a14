"""Every command of the documentation runs until training begins."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import page_commands
import pytest
from page_commands import README, ROOT, before_training, check_commands, commands, write_own_recipe
from support import check_each

from rlhf_lab.cli.table import COMMANDS
from rlhf_lab.config import command_line, compose

PAGES = [
    "README.md",
    "AGENTS.md",
    "recipes/README.md",
    *sorted(p.relative_to(ROOT).as_posix() for p in ROOT.glob("docs/**/*.md")),
]
"""Pages whose commands run here; those of CONTRIBUTING.md need its plug-in: tests/learn/test_contributing.py."""

NOT_COMMANDS = {"NAME"}
"""First words of rows of the table of commands that stand for any command."""


def test_every_sub_command_has_a_row() -> None:
    text = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `python -m rlhf_lab (\w+)", text, re.M)
    assert not set(COMMANDS) - set(rows), "docs/running.md lacks a row of its table of commands"
    unknown = set(rows) - set(COMMANDS) - NOT_COMMANDS
    assert not unknown, f"docs/running.md has rows of commands that do not exist: {sorted(unknown)}"


def test_every_command_runs_until_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = before_training(monkeypatch)

    def check(page: str) -> None:
        directory = tmp_path / page.replace("/", "_")
        directory.mkdir()
        write_own_recipe(directory)
        checked = check_commands(page, directory, begun)
        assert checked >= {"README.md": 8, "docs/running.md": 20}.get(page, 1)

    check_each([page for page in PAGES if commands(page)], check)


def test_a_command_that_does_not_compose_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = before_training(monkeypatch)
    monkeypatch.setattr(page_commands, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("```\nA=1 python -m rlhf_lab \\\n  +recipe=sft algorithm.lr=1e-4\n```\n")
    assert check_commands("page.md", tmp_path, begun) == 1
    for wrong in ("+recipe=sft algorithm.learning=1", "compare A B polcy=x", "audit data=nothing"):
        page.write_text(f"```\npython -m rlhf_lab {wrong}\n```\n")
        with pytest.raises((AssertionError, compose.ConfigError)):
            check_commands("page.md", tmp_path, begun)


def test_the_mistakes_shown_are_the_mistakes_reported() -> None:
    line = next(line for line in commands("README.md") if "+recipie=x" in line)
    with pytest.raises(compose.ConfigError) as caught:
        command_line.check_command(shlex.split(line)[3:])
    assert f"{len(caught.value.problems)} problems, nothing was run:" in README
    for problem in caught.value.problems:
        assert f"  • {problem}\n" in README
