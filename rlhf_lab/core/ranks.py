"""The processes that work on one stage together: their ranks, how work is divided, how results are exchanged.

All of them run the same program in lockstep and hold the same state; they divide forward passes and exchange the
results here. With one process every function is the identity. Values travel over CPU collectives (gloo), tensors of a
model over those of its device.
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
TIMEOUT = timedelta(days=1)  # one process may build a stage alone while the others wait
MEETING = "RLHF_LAB_MEETING"
"""Environment variable of processes that the lab started: the address at which they find each other."""

_alone = False
_ended_groups: list[Any] = []
"""Process groups that are over, kept from being destroyed: Gloo's destructor joins a thread that may wait for the GIL,
which the destructor holds."""


def launched() -> int:
    """Processes that a launcher (the lab's own, torchrun) started together with this one; 1 without one."""
    was_launched = "RANK" in os.environ and (MEETING in os.environ or "MASTER_ADDR" in os.environ)
    return int(os.environ.get("WORLD_SIZE", "1")) if was_launched else 1


def machines() -> int:
    """Machines that the processes of a launcher are on, where all have equally many."""
    return max(1, launched() // int(os.environ.get("LOCAL_WORLD_SIZE", launched())))


def local_rank() -> int:
    """Number of this process on its machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def device(wanted: str) -> str:
    """The device of this process for `runtime.device`: `auto` is a GPU where there is one."""
    if wanted != "auto":
        return wanted
    return "cuda" if torch.cuda.is_available() else "cpu"


@contextmanager
def group(kind: str) -> Iterator[None]:
    """In this block the launched processes form a process group. They are killed when their launcher ends.

    After an error the group is not closed: closing waits for the other processes, which wait for this one.

    Args:
        kind: kind of device; "cuda" takes NCCL for tensors on GPUs; values always travel by gloo.
    """
    if dist.is_initialized() or launched() == 1:
        yield
        return
    die_with_parent(signal.SIGKILL)  # the lab's own launcher holds the stage's lock: nobody trains on without it
    if kind == "cuda":
        torch.cuda.set_device(local_rank())
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(
        backend,
        init_method=os.environ.get(MEETING, "env://"),
        rank=int(os.environ["RANK"]),
        world_size=launched(),
        timeout=TIMEOUT,
    )
    files.only_main_writes(dist.get_rank() == 0)
    yield  # no `finally`, see above
    files.only_main_writes(True)
    _ended_groups.append(dist.group.WORLD)
    dist.destroy_process_group()


@contextmanager
def alone() -> Iterator[None]:
    """In this block the process works by itself: `world` is 1, and nothing is exchanged."""
    global _alone
    was_alone = _alone
    _alone = True
    try:
        yield
    finally:
        _alone = was_alone


def world() -> int:
    """Number of processes that work together."""
    return dist.get_world_size() if dist.is_initialized() and not _alone else 1


def rank() -> int:
    """Number of this process among them."""
    return dist.get_rank() if dist.is_initialized() and not _alone else 0


def is_main() -> bool:
    """Whether this is the process that writes files and speaks to people and services."""
    return not dist.is_initialized() or dist.get_rank() == 0


def deal(items: Sequence[Item]) -> Iterator[tuple[Item, bool]]:
    """(item, True) for every item that is this process's; all processes get equally many.

    A process that runs out gets the last item again with False: to be computed, because a divided model needs every
    process in each of its passes, but not to be counted.
    """
    processes = world()
    own_rank = rank()
    for begin in range(0, len(items), processes):
        index = begin + own_rank
        yield items[min(index, len(items) - 1)], index < len(items)


def share(items: Sequence[Item]) -> list[Item]:
    """Every world()-th item from rank()."""
    return list(items[rank() :: world()])


def gather(items: Sequence[Item]) -> list[Item]:
    """The items of all processes as one list: the first of each, the second of each, … — the inverse of `share`."""
    if world() == 1:
        return list(items)
    items_by_process: list[list[Item]] = exchange(list(items))
    longest = max(map(len, items_by_process))
    return [process[i] for i in range(longest) for process in items_by_process if i < len(process)]


def exchange(value: Item) -> list[Item]:
    """The value of every process, in order of their numbers."""
    if world() == 1:
        return [value]
    values: list[Any] = [None] * world()
    dist.all_gather_object(values, value)
    return values


def any_of(flag: bool) -> bool:
    """Whether the flag is set in some process."""
    if world() == 1:
        return flag
    count = torch.tensor(int(flag))
    dist.all_reduce(count)
    return bool(count)


def on_main(call: Callable[[], Item]) -> Item:
    """The result of a call that the main process makes for all. An exception is raised in every process."""
    if world() == 1:
        return call()
    outcome: list[Any] = [None, None]  # (result, error)
    if is_main():
        try:
            result = call()
            pickle.dumps(result)  # raises here, where every process hears of it, and not within the broadcast
            outcome = [result, None]
        except Exception as error:
            outcome = [None, _picklable(error)]
    dist.broadcast_object_list(outcome, src=0)
    result, failure = outcome
    if failure is not None:
        raise failure
    return result


def _picklable(error: Exception) -> Exception:
    """The error, or one with its text where it cannot be sent to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return LabError(f"{type(error).__name__}: {error}")
    return error


def wait() -> None:
    """Return when all processes have called this."""
    if world() > 1:
        any_of(False)  # any exchange is a barrier
