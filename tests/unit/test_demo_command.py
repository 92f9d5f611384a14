"""The demo: its command, and the texts before and after the run."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from rlhf_lab import main
from rlhf_lab.cli import demo
from rlhf_lab.cli.recipe_command import RecipeCommand
from rlhf_lab.config import compose
from rlhf_lab.core.console import QUIET, VERBOSITY, console
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


def test_the_next_commands_are_those_that_the_user_can_type(stages, monkeypatch, capsys):
    assert "  python -m rlhf_lab list" in printed(monkeypatch, capsys, program="__main__.py")


@pytest.mark.parametrize("line", demo._closing().partition("Next:")[2].split("\n"))
def test_every_command_that_it_suggests_exists(line):
    words = line.split("   ")[0].replace("rlhf-lab", "").replace("python -m rlhf_lab", "").split()
    if not words or words[0] in ("list", "doctor", "explain"):
        return
    command = words if words[0].startswith("+") else demo.prepare(words[1:]).words
    assert compose.check_command(command).jobs


def test_only_the_result_is_printed_with_q(stages, monkeypatch, capsys):
    assert printed(monkeypatch, capsys, "-q") == "the table\n"
    assert os.environ[VERBOSITY] == QUIET


def test_flags_print_what_they_always_print(stages, monkeypatch, capsys):
    out = printed(monkeypatch, capsys, "--cfg", "job")
    assert out.startswith("engine: native") and "Next:" not in out and not stages


def test_a_failed_run_has_no_closing(stages, monkeypatch, capsys):
    monkeypatch.setattr(main, "run_stage", lambda stage, started: (main.PAUSED, {}))
    monkeypatch.setitem(main.COMMANDS, "demo", lambda words: RecipeCommand(["+recipe=sft"], "closing"))
    monkeypatch.setattr(sys, "argv", ["rlhf-lab", "demo"])
    with pytest.raises(SystemExit) as end:
        main.main()
    assert end.value.code == main.PAUSED and "closing" not in capsys.readouterr().out
