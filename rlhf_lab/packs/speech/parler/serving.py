"""Request loop of the worker. It stops when the pipe is closed or when the parent process exits."""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlhf_lab.packs.speech.parler.protocol import Closed, WorkerMessage, receive, send

Arrays = dict[str, np.ndarray]
Answer = tuple[dict[str, Any], Arrays]
"""Values (JSON) and arrays of an answer."""


def serve(source: int, sink: int, verbs: Mapping[str, Callable[..., Answer]]) -> None:
    """Answer requests until the pipe is closed. An exception raised by a request is sent as an error answer."""
    while True:
        try:
            request = receive(source)
        except Closed:
            return
        try:
            arrays = dict(request.arrays)
            values, results = verbs[request.header["verb"]](arrays, **request.header["arguments"])
            answer = WorkerMessage({"values": values}, results)
        except Exception as error:
            kind = f"{type(error).__name__}: {error}"
            answer = WorkerMessage({"error": {"kind": kind, "trace": traceback.format_exc()}})
        send(sink, answer)


def end_with(parent: int) -> None:
    """Exit this process within a second after its parent exits, even in the middle of a computation."""

    def watch() -> None:
        # an orphaned process is adopted by another parent, so its parent id changes
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)  # sys.exit would only end this thread

    threading.Thread(target=watch, daemon=True).start()
