"""Context for importing large libraries. This module does not import torch."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """Pause Python's garbage collector of reference cycles while large libraries are imported.

    The imports create hundreds of thousands of permanent objects. The collector would scan them repeatedly, which takes
    a fifth of the time of importing torch and transformers. Afterwards `gc.freeze` excludes all existing objects from
    later collections, unless torch was imported before: objects left over from a run must remain collectable.
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
