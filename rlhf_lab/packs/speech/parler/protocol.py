"""Messages between client and worker: JSON and raw arrays over two pipes. Unlike pickle, a message cannot run code.

A message consists of the 4 bytes `RLP1`, the length of the header (4 bytes, little-endian), the header as UTF-8 JSON,
and the bytes of each array in the order of `header["arrays"]`, a list of [name, dtype, shape]. A request has `verb` and
`arguments`. An answer has `values`, or `error` with `kind` and `trace`. Each request is answered before the next is
sent.
"""

from __future__ import annotations

import json
import math
import os
import select
import struct
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAGIC = b"RLP1"
DTYPES = ("float32", "float64", "int64", "bool")
MOST_HEADER_BYTES = 64 * 2**20
MOST_ARRAY_BYTES = 8 * 2**30


class Closed(ConnectionError):
    """The other side has closed its end of the pipe."""


class Malformed(ConnectionError):
    """The bytes that were read are not a message of this protocol."""


@dataclass(frozen=True)
class WorkerMessage:
    """A request or an answer.

    Attributes:
        header: `verb` and `arguments` of a request; `values` or `error` of an answer.
        arrays: arrays by name.
    """

    header: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


def send(descriptor: int, message: WorkerMessage) -> None:
    """Write a message to a pipe. Raises Closed if the other side has closed the pipe."""
    arrays = {name: np.ascontiguousarray(array) for name, array in message.arrays.items()}
    for name, array in arrays.items():
        if str(array.dtype) not in DTYPES:
            raise TypeError(f"array {name!r} has dtype {array.dtype}; a message supports {', '.join(DTYPES)}")
    described = [[name, str(array.dtype), list(array.shape)] for name, array in arrays.items()]
    header = json.dumps({**message.header, "arrays": described}).encode()
    # header first, so that the reader knows the sizes of the arrays
    _write(descriptor, MAGIC + struct.pack("<I", len(header)) + header)
    for array in arrays.values():
        _write(descriptor, array.tobytes())


def receive(descriptor: int, *, timeout_s: float | None = None) -> WorkerMessage:
    """Read the next message of a pipe.

    Args:
        timeout_s: maximum number of seconds until the complete message has arrived; None waits forever.
    Raises:
        Closed: the pipe was closed before or within a message.
        Malformed: the pipe contains something other than a message.
        TimeoutError: the message did not arrive in time.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    start = _read(descriptor, len(MAGIC) + 4, deadline)
    length = struct.unpack("<I", start[len(MAGIC) :])[0]
    # a library that prints to the pipe must not be read as a length of gigabytes
    if start[: len(MAGIC)] != MAGIC or length > MOST_HEADER_BYTES:
        raise Malformed(f"the pipe contains {bytes(start)!r} instead of the start of a message")
    header = json.loads(_read(descriptor, length, deadline))
    arrays = {}
    for name, dtype, shape in header.pop("arrays"):
        arrays[name] = _read_array(descriptor, dtype, shape, deadline)
    return WorkerMessage(header, arrays)


def _read_array(descriptor: int, dtype: str, shape: list[int], deadline: float | None) -> NDArray[Any]:
    is_shape = all(isinstance(size, int) and size >= 0 for size in shape)
    if dtype not in DTYPES or not is_shape:
        raise Malformed(f"a message announces an array with invalid dtype {dtype} or shape {shape}")
    count = math.prod(shape) * np.dtype(dtype).itemsize
    if count > MOST_ARRAY_BYTES:
        raise Malformed(f"a message announces an array of {count} bytes; the limit is {MOST_ARRAY_BYTES}")
    return np.frombuffer(_read(descriptor, count, deadline), dtype).reshape(shape)


def _write(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    try:
        while view:
            # a pipe may accept only part of the data
            view = view[os.write(descriptor, view) :]
    except BrokenPipeError:
        raise Closed("the other side has closed the pipe") from None


def _read(descriptor: int, count: int, deadline: float | None) -> bytearray:
    content = bytearray()
    while len(content) < count:
        if deadline is not None:
            left = max(0.0, deadline - time.monotonic())
            # a plain read could block beyond the deadline
            readable, _, _ = select.select([descriptor], [], [], left)
            if not readable:
                raise TimeoutError
        piece = os.read(descriptor, min(count - len(content), 2**20))
        if not piece:
            raise Closed("the other side has exited")
        content += piece
    return content


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
