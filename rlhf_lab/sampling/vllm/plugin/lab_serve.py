"""Starts vLLM's server so that it ends with the process that started it: `python lab_serve.py PARENT [argument …]`.

vLLM handles signals by itself, and takes none while it starts, so a signal at the parent's end would not do.
"""

from __future__ import annotations

import os
import runpy
import shutil
import signal
import sys
import tempfile
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


def use_for_temporary_files(folder: str) -> None:
    """vLLM's processes leave sockets and files there. What is compiled is kept where it is for all servers."""
    compiled = f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", compiled)
    os.environ["TMPDIR"] = tempfile.tempdir = folder


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="rlhf_lab_vllm_", ignore_cleanup_errors=True) as folder:
        use_for_temporary_files(folder)
        threading.Thread(target=end_with, args=[int(sys.argv.pop(1)), folder], daemon=True).start()
        runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
