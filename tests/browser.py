"""A headless Chromium that tests drive over its debugging pipe: pages, keys, screenshots, requests. Nothing to install.

The DevTools protocol without a socket: JSON messages that end in a zero byte, on descriptors 3 and 4 of the browser.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--window-size=1200,900",
    "--remote-debugging-pipe",
]
INSTALLED = shutil.which("chromium") is not None
PATIENCE = 60.0
"""Seconds to wait for an answer of the browser."""


class Browser:
    """One browser with one page; everything that it requests is recorded in `requests`.

    Args:
        profile: an empty directory for the browser's own files.
        offline: without a network, this machine's own servers included.
    """

    def __init__(self, profile: Path, *, offline: bool = True):
        to_browser, self._send = os.pipe()
        self._receive, from_browser = os.pipe()
        self.requests: list[str] = []
        self._buffer, self._count, self._session = b"", 0, None
        code = "import os, sys; os.dup2(%d, 3); os.dup2(%d, 4); os.execvp(sys.argv[1], sys.argv[1:])"
        high = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_browser, from_browser)]  # clear of 3 and 4
        self._process = subprocess.Popen(
            [sys.executable, "-c", code % tuple(high), "chromium", *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=high,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (*high, to_browser, from_browser):
            os.close(end)
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime"):
            self.call(f"{domain}.enable")
        self.call(
            "Network.emulateNetworkConditions", offline=offline, latency=0, downloadThroughput=0, uploadThroughput=0
        )

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command of the protocol and wait for its answer."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        """The next message of the browser; requests among them are noted."""
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._receive], [], [], max(0.0, end - time.monotonic()))
            chunk = os.read(self._receive, 2**20) if ready else b""
            assert chunk, "the browser does not answer"
            self._buffer += chunk
        text, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(text)
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        return message

    def open(self, page: Path | str, *, dark: bool = False, width: int = 1200, scripts: bool = True) -> None:
        """Load a page from disk or a URL in the light or the dark theme, and wait until its figures are interactive."""
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        theme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=theme)
        self.requests.clear()
        self.call("Page.navigate", url=page.as_uri() if isinstance(page, Path) else page)
        while self._next().get("method") != "Page.loadEventFired":
            pass
        live = "!document.getElementById('vega') || document.documentElement.dataset.charts === 'live'"
        end = time.monotonic() + PATIENCE
        while scripts and not self.run(live):
            assert time.monotonic() < end, "the figures do not become interactive"
            time.sleep(0.05)

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """Press a key as a person would."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def move(self, x: float, y: float) -> None:
        """Move the pointer to a position in the window."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        """Click at a position in the window."""
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, box: dict[str, float] | None = None) -> np.ndarray:
        """The page, or a rectangle of it (x, y, width, height in CSS pixels), as (height, width, 3) bytes."""
        if box is None:
            box = self.run(
                "({x: 0, y: 0, width: document.documentElement.clientWidth, "
                "height: document.documentElement.scrollHeight})"
            )
        clip = {**box, "scale": 1}
        shot = self.call(
            "Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True, optimizeForSpeed=True
        )
        return decode_png(base64.b64decode(shot["data"]))

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        for end in (self._send, self._receive):
            os.close(end)


def decode_png(raw: bytes) -> np.ndarray:
    """An 8-bit RGB or RGBA PNG without interlacing as (height, width, 3) bytes (PNG specification, §9 and §12)."""
    position, packed, width, height, channels = 8, b"", 0, 0, 0
    while position < len(raw):
        (length,), kind = struct.unpack(">I", raw[position : position + 4]), raw[position + 4 : position + 8]
        chunk = raw[position + 8 : position + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", chunk)
            assert (depth, interlaced) == (8, 0) and colour in (2, 6), "not an 8-bit RGB picture"
            channels = {2: 3, 6: 4}[colour]
        elif kind == b"IDAT":
            packed += chunk
        position += 12 + length
    rows = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + width * channels)
    picture = np.zeros((height, width * channels), np.uint8)
    above = np.zeros(width * channels, np.uint8)
    for index, row in enumerate(rows):
        above = picture[index] = _unfiltered(int(row[0]), row[1:], above, channels)
    return picture.reshape(height, width, channels)[:, :, :3]


def _unfiltered(kind: int, row: np.ndarray, above: np.ndarray, channels: int) -> np.ndarray:
    """One row without its filter: none, left, above, average or Paeth."""
    if kind == 0:
        return row
    if kind == 1:
        return np.cumsum(row.reshape(-1, channels), axis=0, dtype=np.uint8).reshape(-1)
    if kind == 2:
        return row + above
    found = [0] * len(row)
    values, over = row.tolist(), above.tolist()
    for i, value in enumerate(values):
        left = found[i - channels] if i >= channels else 0
        corner = over[i - channels] if i >= channels else 0
        found[i] = (value + ((left + over[i]) // 2 if kind == 3 else _paeth(left, over[i], corner))) & 255
    return np.array(found, np.uint8)


def _paeth(left: int, above: int, corner: int) -> int:
    guess = left + above - corner
    distances = abs(guess - left), abs(guess - above), abs(guess - corner)
    return (left, above, corner)[distances.index(min(distances))]
