"""Started programs, and the loop that serves their pipes within the limits of time and output until all have exited."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Callable, Sequence

from rlhf_lab.packs.code.sandbox.outcome import Status

CHUNK = 1 << 16  # bytes per read and write, the default capacity of a pipe
PATIENCE_S = 20.0
"""Time in seconds for a launcher to exit after it was stopped. After this time it counts as hung and is killed."""


class SandboxedProcess:
    """One program in a sandbox, from its start to its exit.

    Args:
        process: launcher with pipes for stdin, stdout and stderr.
        stop: function that makes the launcher kill the program and exit.
        stdin: input of the program; the pipe is closed after it unless `stays_open`.
        wall_s, output_bytes: limits of wall time in seconds, and of stdout and stderr in bytes.
        status_pipe: descriptor of the launcher's report; -1 if it does not report.
        status_bytes: maximum size of the report in bytes.
        stays_open: True if `feed` may add input later.
        on_output: function that receives stdout instead of storing it.
        on_end: function called after the program has exited.
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
        self.broke: Status | None = None  # limit for which this process stopped the program
        self.stdout, self.stderr, self.report = bytearray(), bytearray(), bytearray()
        self.on_output, self.on_end = on_output, on_end
        self.started = time.monotonic()
        self.deadline = self.started + wall_s
        self.finished: float | None = None
        self.is_stopped = False  # stopped by this process, so the report may be missing
        self.is_hung = False  # did not exit after it was stopped
        self._stop: Callable[[], None] | None = stop  # None once it was called, because it may only be called once
        self._pending = bytearray(stdin)
        self._closes_stdin = not stays_open
        self._written = {"stdout": 0, "stderr": 0, "report": 0}
        self._most = {"stdout": output_bytes, "stderr": output_bytes, "report": status_bytes}
        assert process.stdin and process.stdout and process.stderr
        self._readable = {process.stdout.fileno(): "stdout", process.stderr.fileno(): "stderr"}
        if status_pipe >= 0:
            self._readable[status_pipe] = "report"
        self._status_pipe = status_pipe
        os.set_blocking(process.stdin.fileno(), False)  # a program that does not read must not block the loop

    @property
    def wall_s(self) -> float:
        return (self.finished or time.monotonic()) - self.started

    def feed(self, data: bytes) -> None:
        """Queue data for the program's stdin; it is written as soon as the pipe accepts it."""
        self._pending += data

    def close_stdin(self) -> None:
        """Close the program's stdin after all queued data."""
        self._closes_stdin = True

    def stop(self, reason: Status | None = None) -> None:
        """Stop the program. `reason` is the limit that it exceeded, if any."""
        if self._stop is not None:
            self.is_stopped = True
            self.broke = reason
            self.deadline = time.monotonic() + PATIENCE_S
            self._stop()
            self._stop = None

    def check_deadline(self) -> None:
        """Stop a program whose wall time has expired, and kill its launcher if it does not exit after that."""
        if self.finished is not None or time.monotonic() < self.deadline:
            return
        if self.is_stopped:  # the second deadline: the launcher did not exit within PATIENCE_S
            self.is_hung = True
            self.process.kill()
            self._finish()
        else:
            self.stop("timeout")

    def register(self, selector: selectors.BaseSelector) -> None:
        """Register the readable pipes, and stdin if there is data to write."""
        for descriptor in self._readable:
            selector.register(descriptor, selectors.EVENT_READ, self)
        stdin = self.process.stdin
        assert stdin is not None
        if self._pending and not stdin.closed:
            selector.register(stdin.fileno(), selectors.EVENT_WRITE, self)
        elif self._closes_stdin and not stdin.closed:
            stdin.close()

    def handle(self, descriptor: int) -> None:
        """Read from or write to a descriptor once."""
        if descriptor in self._readable:
            self._read(descriptor)
        else:
            self._write(descriptor)

    def _read(self, descriptor: int) -> None:
        data = os.read(descriptor, CHUNK)
        name = self._readable[descriptor]
        if not data:  # the end of the pipe
            del self._readable[descriptor]
            if not self._readable:
                self._finish()
            return
        capacity = self._most[name] - self._written[name]
        self._written[name] += len(data)
        data = data[: max(capacity, 0)]
        if name == "stdout" and self.on_output and data:
            self.on_output(data)
        else:
            getattr(self, name).extend(data)
        if self._written[name] > self._most[name]:  # it would go on writing until its time is up
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
        """Wait for the launcher. All pipes are closed, so all processes of the program have exited."""
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:  # its processes are gone, and it hangs by itself
            self.process.kill()
            self.process.wait()
        self.finished = time.monotonic()
        self.close()
        if self.on_end:
            self.on_end()

    def abandon(self) -> None:
        """Kill the program if it is still running, and wait for its launcher."""
        if self.finished is None:
            self.close()
            self.process.wait()
            self.finished = time.monotonic()

    def close(self) -> None:
        """Close all pipes, which stops the program if it is still running."""
        if self._stop is not None:
            self._stop()
            self._stop = None
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None and not pipe.closed:
                try:
                    pipe.close()
                except BrokenPipeError:  # data were still queued, and the program is gone
                    continue
        if self._status_pipe >= 0:
            os.close(self._status_pipe)
            self._status_pipe = -1


def supervise(programs: Sequence[SandboxedProcess]) -> None:
    """Serve programs until all have exited. When the first program exits, the others are stopped.

    No program is running when this returns or raises.
    """
    try:
        while running := [program for program in programs if program.finished is None]:
            if programs[0].finished is not None:
                for program in running:
                    program.stop()
            with selectors.DefaultSelector() as selector:
                for program in running:
                    program.register(selector)
                # wake up at the next deadline even if no data arrive
                wait = min(program.deadline for program in running) - time.monotonic()
                for key, _ in selector.select(max(wait, 0.0)):
                    if key.data.finished is None:  # an earlier event of the same batch may have finished it
                        key.data.handle(key.fd)
            for program in running:
                program.check_deadline()
    finally:
        for program in programs:
            program.abandon()
