"""Runs of the command line in separate processes, at a size that takes seconds, with one store for the session."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sizes import overrides
from support import command_inside

from rlhf_lab.config import command_line
from rlhf_lab.core.files import read_json
from rlhf_lab.stages import artifacts


@dataclass
class Lab:
    """Starts commands in one working directory.

    Attributes:
        directory: working directory; outputs/ is below it.
    """

    directory: Path

    def start(self, *arguments: str, code: str | None = None) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code] if code else [sys.executable, "-m", "rlhf_lab"]
        return subprocess.Popen(
            [*command, *arguments],
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, status: int = 0) -> str:
        """Run a command to its end; returns what it printed."""
        process = self.start(*arguments)
        out = finish(process)
        assert process.returncode == status, out
        return out

    def recipe(self, name: str, *more: str, status: int = 0) -> str:
        return self.run(f"+recipe={name}", *overrides(name), *more, status=status)

    def inside(self, *arguments: str, status: int = 0) -> str:
        """The same as `run` in this process, which has imported torch already; jobs of a study one after the other."""
        found, out = command_inside(self.directory, *arguments)
        assert found == status, out
        return out

    def stage(self, out: str, recipe: str) -> Path:
        """Directory of a recipe's stage, from the plan that a run printed."""
        match = re.search(rf"^  (?:build|reuse)\s+{re.escape(recipe)}\s+(\S+)", out, re.MULTILINE)
        assert match, out
        return self.directory / match.group(1)

    def result(self, out: str, recipe: str) -> dict[str, Any]:
        return json.loads((self.stage(out, recipe) / "result.json").read_text())

    def completed(self, recipe: str) -> dict[str, dict[str, Any]]:
        """Results of a recipe and what it starts from, by recipe; run now unless the store has them."""
        job = command_line.check_command([f"+recipe={recipe}", *overrides(recipe)]).configs[0]
        stages = list(artifacts.plan(job, recipe).upstream())
        paths = {stage.recipe: self.directory / stage.directory / "result.json" for stage in stages}
        if any((read_json(path) or {}).get("status") != "completed" for path in paths.values()):
            self.inside(f"+recipe={recipe}", *overrides(recipe))
        return {name: read_json(path) for name, path in paths.items()}


def finish(process: subprocess.Popen[str], seconds: float = 240) -> str:
    try:
        return process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        stop(process)
        raise


def stop(process: subprocess.Popen[str]) -> None:
    """kill -9 to the process and its children."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.fixture(scope="session")
def lab(shared_tmp: Path) -> Lab:
    """The store of the session: whatever a test needs upstream is built once."""
    (shared_tmp / "lab").mkdir(exist_ok=True)
    return Lab(shared_tmp / "lab")


@pytest.fixture(scope="session")
def sized() -> Callable[[str], list[str]]:
    return overrides


@pytest.fixture(scope="session")
def lab_in() -> type[Lab]:
    """Build a runner of the command line that works in a directory of the test's choice."""
    return Lab


@pytest.fixture
def fresh(tmp_path: Path) -> Lab:
    """An empty machine."""
    return Lab(tmp_path)


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if "/end_to_end/" in item.path.as_posix():
            item.add_marker(pytest.mark.end_to_end)
