"""Starts vLLM's server so that it ends with the process that started it: `python lab_serve.py PARENT [argument …]`.

vLLM handles signals by itself, and takes none while it starts, so a signal at the parent's end would not do.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time

LOOK_S = 1.0


def end_with(parent: int) -> None:
    """End this process, and the group that it leads, once another process is its parent."""
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=end_with, args=[int(sys.argv.pop(1))], daemon=True).start()
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
