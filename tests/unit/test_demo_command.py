"""The demo: its command, and the texts before and after the run."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from rlhf_lab import main
from rlhf_lab.cli import demo
from rlhf_lab.config import command_line
from rlhf_lab.core.console import VERBOSITY, console
from rlhf_lab.stages import artifacts


@pytest.fixture
def stages(monkeypatch, tmp_path) -> list[artifacts.Stage]:
    """Last stages of the commands that would have run; each of them succeeds at once."""
    begun: list[artifacts.Stage] = []

    def run_stage(stage: artifacts.Stage, started: float) -> tuple[int, dict[str, Any]]:
        begun.append(stage)
        console.print("the table")
        return main.OK, {}

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VERBOSITY, "")
    monkeypatch.setattr(main, "run_stage", run_stage)
    return begun


def printed(monkeypatch, capsys, *arguments: str, program: str = "rlhf-lab") -> str:
    monkeypatch.setattr(sys, "argv", [program, "demo", *arguments])
    with pytest.raises(SystemExit) as end:
        main.main()
    assert end.value.code == 0
    return capsys.readouterr().out


def test_the_demo_says_what_it_does_and_what_to_try_next(stages, monkeypatch, capsys):
    out = printed(monkeypatch, capsys, "algorithm.beta=0.05")
    (stage,) = stages
    assert [upstream.recipe for upstream in stage.upstream()] == ["sft", "reward_model", "dpo"]
    assert stage.config.algorithm.beta == 0.05 and stage.config.data.train_pairs == demo.PAIRS
    before, table, after = out.partition("the table")
    assert table and "about a minute" in before and "Next:" in after
    assert "  rlhf-lab +recipe=dpo_iterative" in after


@pytest.mark.parametrize("line", demo._closing().partition("Next:")[2].split("\n"))
def test_every_command_that_it_suggests_exists(line):
    words = line.split("   ")[0].replace("rlhf-lab", "").replace("python -m rlhf_lab", "").split()
    if not words or words[0] in ("list", "doctor", "explain"):
        return
    command = words if words[0].startswith("+") else demo.demo_command(words[1:]).words
    assert command_line.check_command(command).jobs
