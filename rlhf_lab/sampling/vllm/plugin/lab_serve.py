"""Start vLLM's server such that it ends with the process that started it: `lab_serve.py PARENT DIR [argument …]`.

vLLM handles signals itself and ignores them while it starts, so a signal sent by the parent is not sufficient. DIR is
the server's temporary directory (`server.py` creates and removes it). It is removed here if the parent was killed.
"""

from __future__ import annotations

import os
import runpy
import shutil
import signal
import sys
import threading
import time

LOOK_S = 1.0  # seconds between checks whether the trainer's process still exists


def end_with(parent: int, directory: str) -> None:
    """Kill this process and its process group once its parent has changed, and remove its temporary directory."""
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    shutil.rmtree(directory, ignore_errors=True)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    parent = int(sys.argv.pop(1))
    directory = sys.argv.pop(1)
    threading.Thread(target=end_with, args=[parent, directory], daemon=True).start()
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
