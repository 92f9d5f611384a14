"""Handling of the signals that tell a run to stop. Imports no torch."""

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
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
CAUSE = "stop_signal"
"""Attribute of an exception that a handler raised: the signal."""
AGAIN_SECONDS = 0.01
"""After this time a signal is sent again whose exception Python has ignored."""


@contextmanager
def handled(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """In this block `handle` handles the stop signals. Does nothing outside the main thread, which alone gets signals.

    Python ignores an exception that is raised in a destructor or in the callback of a weak reference. If `handle`
    raised it, its signal is sent again, until an exception gets through.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous_hook = sys.unraisablehook

    def handle_and_mark(number: int, frame: FrameType | None) -> None:
        try:
            handle(number, frame)
        except BaseException as error:
            setattr(error, CAUSE, number)
            raise

    def resend_ignored(unraisable: sys.UnraisableHookArgs) -> None:
        number = getattr(unraisable.exc_value, CAUSE, None)
        if number is None:
            previous_hook(unraisable)
            return
        # From another thread: sent from here, the signal would be handled, and ignored, here again. And from a bare
        # one: threading.Thread takes locks, which the interrupted code may hold.
        _thread.start_new_thread(_send_again, (number,))

    previous_handlers = {number: signal.signal(number, handle_and_mark) for number in STOP_SIGNALS}
    sys.unraisablehook = resend_ignored
    try:
        yield
    finally:
        sys.unraisablehook = previous_hook
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


def _send_again(number: int) -> None:
    time.sleep(AGAIN_SECONDS)
    os.kill(os.getpid(), number)


def die_with_parent(number: int) -> None:
    """Send this process a signal when the one that started it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, number)  # PR_SET_PDEATHSIG
