"""Starts vLLM's server so that it ends with the process that started it: `lab_serve.py PARENT FOLDER [argument …]`.

vLLM handles signals by itself, and takes none while it starts, so a signal at the parent's end would not do. FOLDER is
that of its temporary files (`server.py` makes and removes it), and goes with a parent that was killed.
"""

from __future__ import annotations

import os
import runpy
import shutil
import signal
import sys
import threading
import time

LOOK_S = 1.0


def end_with(parent: int, folder: str) -> None:
    """End this process, and the group that it leads, once another process is its parent; remove its folder."""
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    shutil.rmtree(folder, ignore_errors=True)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    parent, folder = int(sys.argv.pop(1)), sys.argv.pop(1)
    threading.Thread(target=end_with, args=[parent, folder], daemon=True).start()
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
