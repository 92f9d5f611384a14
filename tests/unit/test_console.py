"""Console: what -q and -v print, what the log of a run keeps, and where a study's job prints."""

from __future__ import annotations

import io
import os
import re
import sys

import pytest
from rich.table import Table

from rlhf_lab import main
from rlhf_lab.cli.verbosity import take_flags
from rlhf_lab.core.console import LOG_FILE, QUIET, VERBOSE, VERBOSITY, LabConsole
from rlhf_lab.core.errors import ConfigError


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def shown(out) -> LabConsole:
    return LabConsole(file=out, width=80)


@pytest.mark.parametrize(
    ("verbosity", "lines"), [("", "result\ncourse\n"), (QUIET, "result\n"), (VERBOSE, "result\ncourse\ndetail\n")]
)
def test_the_log_has_everything_whatever_is_printed(tmp_path, monkeypatch, out, shown, verbosity, lines):
    monkeypatch.setenv(VERBOSITY, verbosity)
    with shown.logged(tmp_path):
        shown.print("result")
        shown.inform("course")
        shown.detail("detail")
    assert out.getvalue() == lines
    logged = (tmp_path / LOG_FILE).read_text().splitlines()
    assert [re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", "", line) for line in logged] == ["result", "course", "detail"]


def test_text_is_literal_and_unbroken_and_cells_of_tables_have_markup(out, shown):
    override = f"data.path={'x' * 100} [bold]"
    table = Table(box=None, show_header=False, padding=0)
    table.add_row("[bold]cell[/]")
    for printed in (override, table):
        shown.print(printed)
        with shown.diverted(out):
            shown.print(printed)
    shown.print(f"[bold]{'word ' * 20}[/]", markup=True, soft_wrap=False)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert lines == [override, override, "cell", "cell", ("word " * 16).rstrip(), ("word " * 4).rstrip()]


def test_a_log_is_plain_text_without_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "very-secret-value")
    colourful = LabConsole(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=80)
    table = Table()
    table.add_column("policy")
    table.add_row("\x1b[31mSFT\x07")
    with colourful.logged(tmp_path):
        colourful.print("[bold red]failed:[/] key very-secret-value", markup=True)
        colourful.print(table)
    text = (tmp_path / LOG_FILE).read_text()
    assert "failed: key …" in text and "SFT" in text and "┃ policy" in text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)


def test_lines_wait_for_the_directory_of_the_run(tmp_path, shown):
    directory = tmp_path / "run"
    with shown.logged(directory):
        shown.print("plan")
        assert not directory.exists()
        directory.mkdir()
        with shown.logged(directory):  # the stage itself opens the same log
            shown.print("stage")
    assert [line.split("  ")[1] for line in (directory / LOG_FILE).read_text().splitlines()] == ["plan", "stage"]
    with shown.logged(tmp_path / "never"):
        shown.print("nothing was built")
    assert not (tmp_path / "never").exists()


def test_diverted_output_is_logged_too(tmp_path, out, shown):
    output = io.StringIO()
    with shown.logged(tmp_path), shown.diverted(output):
        assert shown.diverted_to is output
        shown.print("[bold]table[/]", markup=True)
    shown.print("after")
    assert output.getvalue() == "table\n" and out.getvalue() == "after\n" and shown.diverted_to is None
    assert "table" in (tmp_path / LOG_FILE).read_text()


def test_other_processes_write_no_log(tmp_path, out, shown):
    with shown.logged(tmp_path), shown.diverted(io.StringIO()):
        shown.print_for_parent()
        shown.print("of the child")
    assert not (tmp_path / LOG_FILE).exists()
    shown.quiet = True
    with shown.logged(tmp_path):
        shown.print("x")
    assert out.getvalue() == "" and not (tmp_path / LOG_FILE).exists()


@pytest.fixture
def verbosity(monkeypatch) -> None:
    monkeypatch.setenv(VERBOSITY, "")  # restored after the test


@pytest.mark.parametrize(
    ("flag", "value"), [("-q", QUIET), ("--quiet", QUIET), ("-v", VERBOSE), ("--verbose", VERBOSE)]
)
def test_a_flag_may_stand_anywhere(verbosity, flag, value):
    assert take_flags(["+recipe=dpo", flag, "seed=1"]) == ["+recipe=dpo", "seed=1"]
    assert os.environ[VERBOSITY] == value


def test_a_flag_changes_nothing_elsewhere(verbosity):
    assert take_flags(["compare", "explain", "list"]) == ["compare", "explain", "list"]
    assert os.environ[VERBOSITY] == ""
    # A run may be called like a command.
    assert take_flags(["compare", "list", "explain", "-q"]) == ["compare", "list", "explain"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-q", "-v", "+recipe=dpo"], "-q and -v contradict each other"),
        (["-q"], "-q has no effect on `list`"),
        (["explain", "-v", "seed"], "-v has no effect on `explain`"),
        (["--quiet", "--version"], "--quiet has no effect on `--version`"),
        (["+recipe=dpo", "--cfg=job", "-q"], "-q has no effect on `--cfg`"),
    ],
)
def test_flags_that_make_no_sense_are_refused(verbosity, arguments, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        take_flags(arguments)


def test_a_wrong_flag_is_a_problem_of_the_command(verbosity, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["rlhf_lab", "explain", "-q"])
    with pytest.raises(SystemExit) as end:
        main.main()
    assert end.value.code == 2 and "1 problem, nothing was run" in capsys.readouterr().out
