"""Processes that work on one stage together: their ranks, how work is split, how results are exchanged.

All processes run the same program in lockstep and hold the same state. They split the forward passes between them and
exchange the results through this module. With one process every function is the identity. Python values travel over CPU
collectives (gloo), tensors of a model over those of its device.
"""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from rlhf_lab.core import files
from rlhf_lab.core.errors import LabError
from rlhf_lab.core.signals import die_with_parent

Item = TypeVar("Item")
TIMEOUT_MINUTES = 30.0
"""Default timeout in minutes of a collective operation that all processes reach at about the same time."""
WAIT_TIMEOUT = timedelta(days=1)
"""Timeout while other processes wait for the main process, which may build a stage or write a model alone."""
MEETING = "RLHF_LAB_MEETING"
"""Environment variable of processes that rlhf_lab launched: the address at which they find each other."""

_alone = False
"""True inside `single_process`."""
_waiting: Any = None
"""Process group in which processes wait for the main one; None if it does not exist yet."""
_finished_groups: list[Any] = []
"""Finished process groups. They are never destroyed: Gloo's destructor holds the GIL while it joins a thread that may
be waiting for the GIL."""


def launched() -> int:
    """Return the number of processes that a launcher (rlhf_lab's own or torchrun) started together; 1 without one."""
    was_launched = "RANK" in os.environ and (MEETING in os.environ or "MASTER_ADDR" in os.environ)
    return int(os.environ.get("WORLD_SIZE", "1")) if was_launched else 1


def machines() -> int:
    """Return the number of machines that the launched processes run on, assuming equally many on each."""
    return max(1, launched() // int(os.environ.get("LOCAL_WORLD_SIZE", launched())))


def local_rank() -> int:
    """Return the index of this process on its machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def device(requested: str) -> str:
    """Return the device of this process for `runtime.device`: `auto` is a GPU if there is one."""
    if requested != "auto":
        return requested
    return "cuda" if torch.cuda.is_available() else "cpu"


@contextmanager
def group(kind: str, timeout_minutes: float = TIMEOUT_MINUTES) -> Iterator[None]:
    """Form a process group of the launched processes in this block. They are killed when their launcher exits.

    After an error the group is not closed: closing waits for the other processes, which wait for this one.

    Args:
        kind: kind of device; "cuda" uses NCCL for tensors on GPUs. Python values always travel over gloo.
        timeout_minutes: timeout of a collective operation; a process whose peers hang then fails.
    """
    global _waiting
    if dist.is_initialized() or launched() == 1:
        yield
        return
    # rlhf_lab's launcher holds the lock of the stage, so no process may continue to train without it.
    die_with_parent(signal.SIGKILL)
    if kind == "cuda":
        torch.cuda.set_device(local_rank())
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(
        backend,
        init_method=os.environ.get(MEETING, "env://"),
        rank=int(os.environ["RANK"]),
        world_size=launched(),
        timeout=timedelta(minutes=timeout_minutes),
    )
    # A separate group, because waiting for the main process needs a much longer timeout.
    _waiting = dist.new_group(backend="gloo", timeout=WAIT_TIMEOUT)
    files.only_main_writes(dist.get_rank() == 0)
    yield  # without `finally`: after an error the group must not be closed, see the docstring
    files.only_main_writes(True)
    _finished_groups.extend([dist.group.WORLD, _waiting])
    _waiting = None
    dist.destroy_process_group()


@contextmanager
def single_process() -> Iterator[None]:
    """Make the process work alone in this block: `world` is 1, and nothing is exchanged."""
    global _alone
    was_alone = _alone
    _alone = True
    try:
        yield
    finally:
        _alone = was_alone


def world() -> int:
    """Return the number of processes that work together."""
    return dist.get_world_size() if dist.is_initialized() and not _alone else 1


def rank() -> int:
    """Return the index of this process among the processes that work together, from 0."""
    return dist.get_rank() if dist.is_initialized() and not _alone else 0


def is_main() -> bool:
    """Return True for the process that writes files, prints, and calls services."""
    return not dist.is_initialized() or dist.get_rank() == 0


def deal_round_robin(items: Sequence[Item]) -> Iterator[tuple[Item, bool]]:
    """Yield (item, True) for every item of this process; all processes get the same number of items.

    A process that runs out gets the last item again with False. It must be computed but not counted: a sharded model
    needs every process in each of its passes.
    """
    processes = world()
    own_rank = rank()
    for start in range(0, len(items), processes):
        index = start + own_rank
        yield items[min(index, len(items) - 1)], index < len(items)


def shard(items: Sequence[Item]) -> list[Item]:
    """Return every world()-th item, starting from rank()."""
    return list(items[rank() :: world()])


def gather(items: Sequence[Item]) -> list[Item]:
    """Return the items of all processes as one list: the first of each, the second of each, … (inverse of `shard`)."""
    if world() == 1:
        return list(items)
    # The last processes may have one item fewer than the first, so their lists end one round earlier.
    items_by_process: list[list[Item]] = exchange(list(items))
    max_length = max(map(len, items_by_process))
    return [process[i] for i in range(max_length) for process in items_by_process if i < len(process)]


def exchange(value: Item) -> list[Item]:
    """Return the value of every process, ordered by rank."""
    if world() == 1:
        return [value]
    values: list[Any] = [None] * world()
    dist.all_gather_object(values, value)
    return values


def any_of(flag: bool) -> bool:
    """Return True if the flag is set in any process."""
    if world() == 1:
        return flag
    count = torch.tensor(int(flag))
    dist.all_reduce(count)
    return bool(count)


def on_main(call: Callable[[], Item]) -> Item:
    """Call a function on the main process and return its result on all. An exception is raised in every process."""
    if world() == 1:
        return call()
    # Errors travel like results: a process that raised alone would leave the others waiting.
    outcome: list[Any] = [None, None]  # (result, error)
    if is_main():
        try:
            result = call()
            pickle.dumps(result)  # a failure here reaches every process; inside the broadcast it would hang the others
            outcome = [result, None]
        except Exception as error:
            outcome = [None, _picklable(error)]
    dist.broadcast_object_list(outcome, src=0, group=_waiting)
    result, failure = outcome
    if failure is not None:
        raise failure
    return result


def _picklable(error: Exception) -> Exception:
    """Return the error, or an error with its text if it cannot be sent to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return LabError(f"{type(error).__name__}: {error}")
    return error


def wait() -> None:
    """Block until all processes have called this function."""
    if world() > 1:
        dist.all_reduce(torch.tensor(0), group=_waiting)  # any collective operation is a barrier
