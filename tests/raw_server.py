"""A server on this machine that sends raw bytes, for responses that no HTTP server would send."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress


class RawServer:
    """Sends prepared pieces, each followed by a pause; with `again`, the last of them for ever.

    Attributes:
        url: its address, by http.
        requests: the beginning of each request.
    """

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.pause_s = 0.0
        self.again = False
        self.requests: list[bytes] = []
        self._stopped = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            with suppress(OSError), self._listener.accept()[0] as connection:
                if self._stopped.is_set():
                    return
                connection.settimeout(1.0)  # of a client that neither reads nor disconnects
                self.requests.append(connection.recv(2**16))
                for piece in self._sent():
                    connection.sendall(piece)
                    if self._stopped.wait(self.pause_s):
                        return

    def _sent(self) -> Iterator[bytes]:
        yield from self.pieces
        while self.again:
            yield self.pieces[-1]

    def stop(self) -> None:
        self._stopped.set()
        with socket.socket() as connection:  # resolves no name, which tests replace
            connection.connect(("127.0.0.1", self.port))
        self._thread.join()
        self._listener.close()
