"""Progress: bars on a terminal, a line now and then elsewhere, nothing with -q, and no control characters in logs."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

import pytest

from rlhf_lab.core import progress as progress_module
from rlhf_lab.core.console import CONTROL_CHARACTERS, LabConsole
from rlhf_lab.core.progress import PUBLISHED, Mirror, Ticker, labelled, progress, tracked


class Terminal(io.StringIO):
    """Text that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch) -> Iterator[Terminal]:
    """A terminal of 120 columns on which bars appear at once."""
    file = Terminal()
    monkeypatch.setattr(progress_module, "console", LabConsole(file=file, force_terminal=True, width=120))
    monkeypatch.setattr(progress_module, "SHOWN_AFTER", -1.0)
    monkeypatch.setattr(progress_module, "REFRESH_SECONDS", -1.0)
    yield file


@pytest.fixture
def log(monkeypatch) -> io.StringIO:
    """The output of a process without a terminal."""
    file = io.StringIO()
    monkeypatch.setattr(progress_module, "console", LabConsole(file=file, width=140))
    monkeypatch.setattr(progress_module, "REFRESH_SECONDS", -1.0)
    return file


def drawn(file: io.StringIO) -> str:
    """What was drawn, without control codes."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue())


def test_loops_inside_loops_have_a_bar_each(terminal):
    with progress("dpo", 8) as ticker, labelled("SFT"):
        for _ in tracked([1, 2, 3], "KL"):
            pass
        ticker.advance(2, note="loss [0.31]")
    out = drawn(terminal)
    assert re.search(r"dpo .*0/8", out) and re.search(r"SFT: KL +[━╸]+ +2/3", out)
    assert "2/8" in out and "loss [0.31]" in out and "about" in out


def test_a_log_gets_a_line_now_and_then(log, monkeypatch):
    with progress("sft", 4, 1) as ticker:
        ticker.advance(note="loss 2.1")
        assert log.getvalue() == ""
        ticker.started -= 400
        ticker.last_line -= 400
        ticker.advance(note="loss 1.9")
        ticker.advance(note="loss 1.8")
    (line,) = log.getvalue().splitlines()
    assert line == "  sft: 3/4, 6:40, about 3:20 left  loss 1.9"


def test_a_log_never_gets_control_characters(monkeypatch):
    """FORCE_COLOR makes rich treat a file as a terminal."""
    file = io.StringIO()
    monkeypatch.setattr(progress_module, "console", LabConsole(file=file, force_terminal=True, width=80))
    monkeypatch.setattr(progress_module, "SHOWN_AFTER", -1.0)
    for _ in tracked(range(5), "KL"):
        pass
    assert not CONTROL_CHARACTERS.search(file.getvalue())


def test_bars_of_another_process_are_mirrored(tmp_path, terminal, monkeypatch):
    path = tmp_path / "bars.json"
    monkeypatch.setattr(progress_module, "PUBLISH_SECONDS", -1.0)
    monkeypatch.setenv(PUBLISHED, str(path))
    mirror = Mirror(path, "dpo")
    with progress("sampling", 40, 4) as ticker:
        ticker.advance(6, note="x")
        assert terminal.getvalue() == ""  # it does not own the terminal
        monkeypatch.delenv(PUBLISHED)
        mirror.update()
        assert re.search(r"dpo: sampling +[━╸]+ +10/40", drawn(terminal))
        (shown,) = mirror._tickers.values()
        assert (shown.first, shown.note) == (4, "x") and shown.seconds >= ticker.seconds - 0.5
    path.write_text("[]")
    mirror.update()
    assert not mirror._tickers
    mirror.close()
    assert not path.exists()


def test_an_error_in_a_loop_removes_its_bar():
    with pytest.raises(ValueError, match="inside"):
        for _ in tracked([1, 2], "KL"):
            raise ValueError("inside")
    assert not progress_module._display.tickers


def test_times_left_count_only_steps_of_this_process():
    ticker = Ticker("sft", 100, 50, first=50)
    assert ticker.seconds_left is None
    ticker.started -= 10
    ticker.done = 60
    assert ticker.seconds_left == pytest.approx(40, abs=1)
