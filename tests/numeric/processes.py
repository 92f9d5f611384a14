"""Runs functions in two gloo processes that work together as the processes of a stage do."""

from __future__ import annotations

import gc
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.multiprocessing as mp


def together(function: Callable[..., None], *arguments: Any, processes: int = 2) -> None:
    """`function(*arguments)` in every process; an error in one of them is raised here."""
    # a server that has imported what a stage needs, once, and has started no thread: processes are forked from it
    multiprocessing.get_context("forkserver").set_forkserver_preload(["rlhf_lab.stages.execute"])
    with tempfile.TemporaryDirectory() as directory:
        work = (function, arguments, processes, f"file://{directory}/meeting")
        mp.start_processes(_work, work, nprocs=processes, start_method="forkserver")


def _work(rank: int, function: Callable[..., None], arguments: tuple[Any, ...], processes: int, meeting: str) -> None:
    from rlhf_lab.core import ranks

    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
    os.environ.update({name: str(value) for name, value in numbers.items()} | {ranks.MEETING: meeting})
    torch.set_num_threads(1)
    # as tests/conftest.py: what is imported is not walked again
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    with ranks.group("cpu"):
        function(*arguments)
    os._exit(0)  # as the lab's own processes end: closing Python with gloo's threads still there can abort
