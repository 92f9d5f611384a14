"""Imports of large libraries. Imports no torch."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """Pause Python's collector of cycles while large libraries are imported.

    They make hundreds of thousands of objects that all stay, and the collector would walk them again and again: a
    fifth of the time that importing torch and transformers takes. What there is afterwards is left out of later
    collections for good (`gc.freeze`), unless torch was imported before: what a run has left behind is to be freed.
    """
    is_first = "torch" not in sys.modules
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_first:
            gc.freeze()
        if was_enabled:
            gc.enable()
