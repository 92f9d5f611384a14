"""Console output of a result: nothing is cut, whatever the width."""

from __future__ import annotations

import errno
import os
import sys

import pytest

from rlhf_lab import main
from rlhf_lab.cli.table import COMMANDS


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
@pytest.mark.parametrize("word", ["--help", "-h"])
def test_every_sub_command_says_what_it_takes(said, name, word):
    status, text = said(name, "anything=1", word)
    assert status == 0
    assert text.startswith(f"{name} ")


def test_every_sub_command_is_listed(said):
    status, text = said()
    assert status == 0
    assert [line.split()[0] for line in text.partition("Other commands")[2].splitlines()[1:]] == list(COMMANDS)
    for name in COMMANDS:
        assert f"python -m rlhf_lab {name} " in (main.__doc__ or "")


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
