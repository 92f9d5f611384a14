"""Started programs: their pipes are served in one loop, within limits of time and output, until all have ended."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Callable, Sequence

from rlhf_lab.packs.code.sandbox.outcome import Status

CHUNK = 1 << 16
PATIENCE_S = 20.0
"""A launcher that has not ended so long after it was told to is broken."""


class Program:
    """One program in a sandbox, from its start to its end.

    Args:
        process: the launcher, with pipes for stdin, stdout and stderr.
        stop: makes the launcher end the program and itself.
        stdin: what the program reads; the pipe is closed behind it unless `stays_open`.
        wall_s, output_bytes: limits.
        status_pipe: where the launcher reports; -1 where it does not.
        on_output: called with what arrives on stdout, in place of keeping it.
        on_end: called when the program has ended.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        stop: Callable[[], None],
        *,
        stdin: bytes,
        wall_s: float,
        output_bytes: int,
        status_pipe: int = -1,
        status_bytes: int = 0,
        stays_open: bool = False,
        on_output: Callable[[bytes], None] | None = None,
        on_end: Callable[[], None] | None = None,
    ):
        self.process = process
        self.broke: Status | None = None  # the limit for which it was ended from here
        self.stdout, self.stderr, self.report = bytearray(), bytearray(), bytearray()
        self.on_output, self.on_end = on_output, on_end
        self.started = time.monotonic()
        self.deadline = self.started + wall_s
        self.ended: float | None = None
        self.is_stopped = False  # ended from here, so that it may not have reported
        self.is_hung = False  # did not end when it was told to
        self._stop: Callable[[], None] | None = stop  # called once
        self._pending = bytearray(stdin)
        self._closes_stdin = not stays_open
        self._written = {"stdout": 0, "stderr": 0, "report": 0}
        self._most = {"stdout": output_bytes, "stderr": output_bytes, "report": status_bytes}
        assert process.stdin and process.stdout and process.stderr
        self._readable = {process.stdout.fileno(): "stdout", process.stderr.fileno(): "stderr"}
        if status_pipe >= 0:
            self._readable[status_pipe] = "report"
        self._status_pipe = status_pipe
        os.set_blocking(process.stdin.fileno(), False)

    @property
    def wall_s(self) -> float:
        return (self.ended or time.monotonic()) - self.started

    def feed(self, data: bytes) -> None:
        """Write to the program's stdin, as soon as it takes it."""
        self._pending += data

    def close_stdin(self) -> None:
        """Let the program see the end of its input, behind all that it was fed."""
        self._closes_stdin = True

    def stop(self, reason: Status | None = None) -> None:
        """End the program; `reason` is the limit that it broke, if it did."""
        if self._stop is not None:
            self.is_stopped = True
            self.broke = reason
            self.deadline = time.monotonic() + PATIENCE_S
            self._stop()
            self._stop = None

    def check_deadline(self) -> None:
        """End a program whose time is over, and kill its launcher where that did not end when it was told to."""
        if self.ended is not None or time.monotonic() < self.deadline:
            return
        if self.is_stopped:
            self.is_hung = True
            self.process.kill()
            self._finish()
        else:
            self.stop("timeout")

    def register(self, selector: selectors.BaseSelector) -> None:
        """Wait for what can be read, and for room in stdin while there is something to write."""
        for descriptor in self._readable:
            selector.register(descriptor, selectors.EVENT_READ, self)
        stdin = self.process.stdin
        assert stdin is not None
        if self._pending and not stdin.closed:
            selector.register(stdin.fileno(), selectors.EVENT_WRITE, self)
        elif self._closes_stdin and not stdin.closed:
            stdin.close()

    def handle(self, descriptor: int) -> None:
        """Read or write once."""
        if descriptor in self._readable:
            self._read(descriptor)
        else:
            self._write(descriptor)

    def _read(self, descriptor: int) -> None:
        data = os.read(descriptor, CHUNK)
        name = self._readable[descriptor]
        if not data:
            del self._readable[descriptor]
            if not self._readable:
                self._finish()
            return
        room = self._most[name] - self._written[name]
        self._written[name] += len(data)
        data = data[: max(room, 0)]
        if name == "stdout" and self.on_output and data:
            self.on_output(data)
        else:
            getattr(self, name).extend(data)
        if self._written[name] > self._most[name]:
            self.stop("output")

    def _write(self, descriptor: int) -> None:
        try:
            written = os.write(descriptor, self._pending[:CHUNK])
            del self._pending[:written]
        except BlockingIOError:
            return
        except OSError:  # the program no longer reads
            self._pending.clear()
            self._closes_stdin = True

    def _finish(self) -> None:
        """All its pipes are closed, so nothing of the program is left but perhaps its launcher."""
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.ended = time.monotonic()
        self.close()
        if self.on_end:
            self.on_end()

    def abandon(self) -> None:
        """End the program, if it has not ended, and wait for its launcher."""
        if self.ended is None:
            self.close()
            self.process.wait()
            self.ended = time.monotonic()

    def close(self) -> None:
        """Close every pipe, which ends the program if it still runs."""
        if self._stop is not None:
            self._stop()
            self._stop = None
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None and not pipe.closed:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue
        if self._status_pipe >= 0:
            os.close(self._status_pipe)
            self._status_pipe = -1


def supervise(programs: Sequence[Program]) -> None:
    """Serve programs until all have ended. When the first of them ends, the others are ended too.

    Nothing runs on when this returns or raises.
    """
    try:
        while running := [program for program in programs if program.ended is None]:
            if programs[0].ended is not None:
                for program in running:
                    program.stop()
            with selectors.DefaultSelector() as selector:
                for program in running:
                    program.register(selector)
                wait = min(program.deadline for program in running) - time.monotonic()
                for key, _ in selector.select(max(wait, 0.0)):
                    if key.data.ended is None:
                        key.data.handle(key.fd)
            for program in running:
                program.check_deadline()
    finally:
        for program in programs:
            program.abandon()
