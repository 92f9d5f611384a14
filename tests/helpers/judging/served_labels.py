"""`python -m rlhf_lab label …` as a process, and requests to it."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import time
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

PATIENCE = 60.0
"""Seconds to wait for the server."""


class Served:
    """A server of labels that has printed its URL.

    Args:
        words: the arguments of `label`.
    """

    def __init__(self, *words: str):
        command = [sys.executable, "-m", "rlhf_lab", "label", *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.printed = ""
        end = time.monotonic() + PATIENCE
        while "Ctrl-C" not in self.printed:  # in the last line before it waits for requests
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, end - time.monotonic()))
            text = os.read(self.process.stdout.fileno(), 2**16) if ready else b""
            assert text, f"the server does not start: {self.printed}"
            self.printed += text.decode()
        self.url = re.search(r"http://\S+", self.printed)[0]

    def ask(self, method: str, path: str, body: Any = None, *, token: bool = True) -> tuple[int, Any]:
        """Status and JSON of the answer to a request."""
        parts = urlsplit(self.url)
        connection = HTTPConnection(parts.netloc, timeout=PATIENCE)
        headers = {"x-label-token": parts.query.removeprefix("token=")} if token else {}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read()
        connection.close()
        return response.status, json.loads(text) if text else None

    def end(self, number: int) -> int:
        """Send a signal, and wait for the exit status."""
        self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=PATIENCE)
        self.printed += rest.decode()
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
