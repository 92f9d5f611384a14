"""Starts vLLM's server so that it ends with the process that started it: `python lab_serve.py PARENT [argument …]`."""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

if __name__ == "__main__":
    parent = int(sys.argv.pop(1))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        sys.exit("the process that started this server has ended already")
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
