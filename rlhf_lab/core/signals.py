"""Handling of the signals that stop a run. This module does not import torch."""

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
"""Attribute of an exception raised by a handler: the number of the signal."""
AGAIN_SECONDS = 0.01
"""Seconds after which a signal is sent again if Python ignored its exception."""


@contextmanager
def handled(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle the stop signals with `handle` in this block. Do nothing outside the main thread.

    Python ignores exceptions raised in a destructor or in a weak-reference callback. If `handle` raised the ignored
    exception, its signal is sent again, until an exception gets through.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Python reports ignored exceptions to this hook, which is the only way to notice them.
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
        # Send from another thread: from this one, the signal would be handled, and its exception ignored, right here.
        # Use a raw thread: threading.Thread takes locks that the interrupted code may hold.
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
    """Ask Linux to send this process a signal when its parent exits; do nothing on other systems."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, number)  # PR_SET_PDEATHSIG
