"""Console output of a result: nothing is cut, whatever the width."""

from __future__ import annotations

import errno
import logging
import os
import sys

import pytest
from rich.console import Console

from rlhf_lab import main
from rlhf_lab.cli import commands
from rlhf_lab.cli.summary import print_problems
from rlhf_lab.cli.table import COMMANDS
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.metrics import catalogue
from rlhf_lab.reports.policy_table import PolicyTable, number

COLUMNS = [metric.name for metric in catalogue().values() if metric.column]


def estimate(mean: float, low: float, high: float) -> dict:
    return {"mean": mean, "low": low, "high": high, "n": 8, "clusters": 4}


def test_a_number_that_is_not_known_is_a_dash():
    """The standard deviation of a constant reward is NaN."""
    assert [number(value) for value in (float("nan"), None, {"mean": None}, 2.0)] == ["–", "–", "–", "2"]


def shown(policies: list[dict], width: int) -> list[str]:
    simple = Console(width=width, no_color=True)
    with simple.capture() as captured:
        simple.print(PolicyTable(policies))
    return captured.get().splitlines()


def test_a_path_is_printed_as_it_is(monkeypatch, tmp_path):
    """A directory may have brackets, which rich reads as markup, and a long name, at which it breaks lines."""
    page = tmp_path / "[x] of [bold]" / ("long " * 40) / "report.html"
    monkeypatch.setattr("rlhf_lab.reports.report.write_report", lambda _: page)
    with console.capture() as captured:
        commands.report_command([str(tmp_path)])
    assert captured.get() == f"report: {page}\n"


@pytest.mark.parametrize("count", [1, 3, 8])
def test_nothing_wraps_at_80_columns(count):
    """Every number of every policy stands in full on one line, in both layouts of the table."""
    numbers = {key: f"{position}.{position:02}" for position, key in enumerate(COLUMNS, 10)}
    metrics = {key: estimate(float(text), float(text) - 0.25, float(text) + 0.25) for key, text in numbers.items()}
    names = ["SFT", "one-pass DPO", *(f"iteration {i}" for i in range(1, 7))][:count]
    lines = shown([{"name": name, "metrics": metrics} for name in names], 80)
    assert max(map(len, lines)) <= 80
    for key, text in numbers.items():
        assert sum(line.count(f"{text} ±0.25") for line in lines) == count, key
    for name in names:
        assert any(name in line for line in lines)


def test_a_problem_of_several_lines_is_one_problem():
    with console.capture() as captured:
        print_problems(DataError("1 row cannot be read\n  row 4: broken JSON\nCorrect the row"))
    assert captured.get().startswith("1 problem, nothing was run:\n  • 1 row cannot")
    with console.capture() as captured:
        print_problems(ConfigError(["a=1 is wrong", "b=[/] is wrong"]))
    assert captured.get() == "2 problems, nothing was run:\n  • a=1 is wrong\n  • b=[/] is wrong\n"


@pytest.fixture
def said(monkeypatch, capsys):
    """(exit status, what the console shows) of a command."""

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["rlhf_lab", *arguments])
        with pytest.raises(SystemExit) as end:
            main.main()
        return end.value.code, capsys.readouterr().out

    return run


@pytest.mark.parametrize("name", COMMANDS)
def test_every_sub_command_says_what_it_takes(said, name):
    status, text = said(name, "anything=1", "--help")
    assert status == 0
    assert text.startswith(f"{name} ")


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, "cannot be written"), (errno.EACCES, "cannot be opened"), (errno.EPERM, "cannot be opened")],
)
def test_an_error_of_the_disk_is_one_line(said, monkeypatch, number, words):
    def refuse(arguments):
        raise OSError(number, os.strerror(number), "data.jsonl")

    monkeypatch.setitem(COMMANDS, "report", refuse)
    status, text = said("report", "x")
    assert status == 1 and f"data.jsonl {words}: {os.strerror(number)}" in text


def test_deepspeed_does_not_announce_that_there_is_no_gpu():
    logger = logging.getLogger("DeepSpeed")
    record = logger.makeRecord(logger.name, logging.WARNING, "", 0, "Setting accelerator to CPU. If you have", (), None)
    assert not logger.filter(record)
    assert logger.filter(logger.makeRecord(logger.name, logging.WARNING, "", 0, "out of memory", (), None))
