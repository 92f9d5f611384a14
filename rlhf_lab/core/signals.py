"""The signals that tell a run to stop, and who is told. Imports no torch."""

from __future__ import annotations

import _thread
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
CAUSE = "stop_signal"
"""Attribute of an exception that a handler raised: the signal."""
AGAIN_SECONDS = 0.01


@contextmanager
def handled(handle: Callable[[int, Any], None]) -> Iterator[None]:
    """In this block the stop signals go to `handle`. Outside the main thread, which alone gets any, it does nothing.

    Python ignores an exception that comes up in a destructor or in the callback of a weak reference. Where `handle`
    raised it, its signal is sent again, until an exception gets through.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    report = sys.unraisablehook

    def raising(number: int, frame: Any) -> None:
        try:
            handle(number, frame)
        except BaseException as error:
            setattr(error, CAUSE, number)
            raise

    def ignored(found: sys.UnraisableHookArgs) -> None:
        number = getattr(found.exc_value, CAUSE, None)
        if number is None:
            report(found)
        else:  # sent from here it would be handled, and ignored, here; threading.Thread takes locks, which may be held
            _thread.start_new_thread(_send_again, (number,))

    before = {number: signal.signal(number, raising) for number in STOP_SIGNALS}
    sys.unraisablehook = ignored
    try:
        yield
    finally:
        sys.unraisablehook = report
        for number, handler in before.items():
            signal.signal(number, handler)


def _send_again(number: int) -> None:
    time.sleep(AGAIN_SECONDS)
    os.kill(os.getpid(), number)


def die_with_parent(number: int) -> None:
    """This process gets a signal when the one that started it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, number)  # PR_SET_PDEATHSIG
