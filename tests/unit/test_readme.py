"""Examples of the README run: the user's own study, and a command with mistakes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import sizes
from page_commands import README, commands, write_own_recipe
from support import command_inside


@pytest.mark.slow
def test_the_kept_question_runs(tmp_path: Path) -> None:
    write_own_recipe(tmp_path)
    command = next(line for line in commands("README.md") if "--config-dir mine" in line)
    levels = ("data.annotator.length_bias=0.75,0.0", "seed=0")
    small = [word for word in sizes.overrides("dpo_iterative") if not word.startswith(("needs.", "+needs."))]
    small.append("hydra/launcher=basic")  # here; in processes of their own they import everything once more
    status, printed = command_inside(tmp_path, *shlex.split(command)[3:], *small, *levels)
    assert status == 0, printed
    (study,) = (tmp_path / "outputs" / "studies").iterdir()
    jobs = [json.loads((study / "jobs" / str(i) / "job.json").read_text()) for i in range(2)]
    assert [job["status"] for job in jobs] == ["completed", "completed"]
    kept = json.loads((study / "study.json").read_text())["command"]
    assert shlex.split(kept) == ["python", "-m", "rlhf_lab", *shlex.split(command)[3:], *small, *levels]
    for job in jobs:
        assert json.loads((Path(job["run"]) / "manifest.json").read_text())["command"] == kept
    assert f"Command: `{kept}`" in (study / "table.md").read_text()


def test_the_shown_mistakes_are_reported_as_shown(tmp_path: Path) -> None:
    block = README.split("$ python -m rlhf_lab ", 1)[1].split("```", 1)[0]
    words, _, shown = block.partition("\n")
    status, printed = command_inside(tmp_path, *shlex.split(words))
    assert status == 2 and printed.split() == shown.split()
