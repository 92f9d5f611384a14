"""A stop signal interrupts a run, wherever in Python it arrives."""

from __future__ import annotations

import signal
import sys
import time
import weakref
from collections.abc import Callable

import pytest

from rlhf_lab import main
from rlhf_lab.core.signals import STOP_SIGNALS, handled
from rlhf_lab.stages.execute import stoppable
from rlhf_lab.training.loop import Interrupted


class Thing:
    pass


def in_a_callback(number: signal.Signals) -> None:
    """Python ignores what the handler raises in a weak reference's callback, first here, then where it comes again."""
    calls: list[Callable[[], None]] = [lambda: signal.raise_signal(number), lambda: time.sleep(120)]
    for call in calls:
        thing = Thing()
        reference = weakref.ref(thing, lambda _, call=call: call())
        del thing
        assert reference() is None


class Doomed:
    def __init__(self, number: signal.Signals):
        self.number = number

    def __del__(self) -> None:
        signal.raise_signal(self.number)


def in_a_destructor(number: signal.Signals) -> None:
    Doomed(number)


@pytest.mark.parametrize("number", STOP_SIGNALS)
@pytest.mark.parametrize("position", [in_a_callback, in_a_destructor])
def test_a_signal_whose_exception_python_ignores_interrupts_all_the_same(number, position, capsys):
    start = time.monotonic()
    with pytest.raises(Interrupted, match=f"stopped by {number.name}"), stoppable():
        position(number)
        time.sleep(120)
    assert time.monotonic() - start < 60
    assert "ignored" not in capsys.readouterr().err  # nothing was


@pytest.fixture
def handlers():
    """Puts the handlers back that `main` leaves to the end of Python."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
def test_a_command_that_has_not_begun_a_stage_is_interrupted_too(monkeypatch):
    def probe(arguments: list[str]) -> None:
        in_a_callback(signal.SIGINT)
        time.sleep(120)

    monkeypatch.setitem(main.COMMANDS, "probe", probe)
    monkeypatch.setattr(sys, "argv", ["rlhf_lab", "probe"])
    with pytest.raises(SystemExit) as end:
        main.main()
    assert end.value.code == main.INTERRUPTED


def test_other_exceptions_are_reported_as_before(monkeypatch):
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: reported.append(found.exc_value))
    hook, handlers = sys.unraisablehook, [signal.getsignal(number) for number in STOP_SIGNALS]

    class Broken:
        def __del__(self) -> None:
            raise ValueError("broken")

    with handled(lambda number, frame: None):
        Broken()
    assert [str(error) for error in reported] == ["broken"]
    assert sys.unraisablehook is hook and [signal.getsignal(number) for number in STOP_SIGNALS] == handlers
