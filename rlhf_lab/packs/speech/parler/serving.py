"""The worker's loop: one request after another until nobody asks, and no longer than the lab lives."""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlhf_lab.packs.speech.parler.protocol import Closed, Message, receive, send

Arrays = dict[str, np.ndarray]
Answer = tuple[dict[str, Any], Arrays]
"""Values and arrays."""


def serve(source: int, sink: int, verbs: Mapping[str, Callable[..., Answer]]) -> None:
    """Answer requests until the pipe ends. What a verb raises is an answer too."""
    while True:
        try:
            request = receive(source)
        except Closed:
            return
        try:
            arrays = dict(request.arrays)
            values, results = verbs[request.header["verb"]](arrays, **request.header["arguments"])
            answer = Message({"values": values}, results)
        except Exception as error:
            kind = f"{type(error).__name__}: {error}"
            answer = Message({"error": {"kind": kind, "trace": traceback.format_exc()}})
        send(sink, answer)


def end_with(parent: int) -> None:
    """End this process within a second of its parent, also in the middle of a computation."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
