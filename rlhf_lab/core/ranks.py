"""The processes that work on one stage together: who am I, what is my share, what do the others have.

All of them run the same program in lockstep and hold the same state; they divide forward passes, and what they find is
exchanged here. With one process every function is the identity. Values travel over CPU collectives (gloo), tensors of a
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
"""Environment variable of processes that the lab started: how they find each other."""

_alone = False
_ended: list[Any] = []
"""Groups that are over. Gloo's destructor joins a thread that may wait for the GIL, which the destructor holds."""


def launched() -> int:
    """Processes that a launcher (the lab's own, torchrun) started together with this one; 1 without one."""
    known = "RANK" in os.environ and (MEETING in os.environ or "MASTER_ADDR" in os.environ)
    return int(os.environ.get("WORLD_SIZE", "1")) if known else 1


def local_rank() -> int:
    """Number of this process on its machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def device(wanted: str) -> str:
    """The device of this process for `runtime.device`: `auto` is a GPU where there is one."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if wanted == "auto" else wanted


@contextmanager
def group(kind: str) -> Iterator[None]:
    """The process group of the launched processes, for the time of the block; they die with who launched them.

    After an error the group stays as it is: closing it waits for processes that wait for this one.

    Args:
        kind: of device; "cuda" takes NCCL for tensors on GPUs; values always travel by gloo.
    """
    if dist.is_initialized() or launched() == 1:
        yield
        return
    die_with_parent(signal.SIGKILL)  # nobody trains on without a lock
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
    yield
    files.only_main_writes(True)
    _ended.append(dist.group.WORLD)
    dist.destroy_process_group()


@contextmanager
def alone() -> Iterator[None]:
    """In this block the process works by itself, whatever others do."""
    global _alone
    before, _alone = _alone, True
    try:
        yield
    finally:
        _alone = before


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
    process in each of its passes, and not to be counted.
    """
    size, own = world(), rank()
    for begin in range(0, len(items), size):
        index = begin + own
        yield items[min(index, len(items) - 1)], index < len(items)


def share(items: Sequence[Item]) -> list[Item]:
    """Every world()-th item from rank()."""
    return list(items[rank() :: world()])


def gather(found: Sequence[Item]) -> list[Item]:
    """What every process found, as one list: the first of each, the second of each, … — the inverse of `share`."""
    if world() == 1:
        return list(found)
    everyone: list[list[Item]] = exchange(list(found))
    longest = max(map(len, everyone))
    return [part[i] for i in range(longest) for part in everyone if i < len(part)]


def exchange(value: Item) -> list[Item]:
    """The value of every process, in order of their numbers."""
    if world() == 1:
        return [value]
    found: list[Any] = [None] * world()
    dist.all_gather_object(found, value)
    return found


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
    found: list[Any] = [None, None]
    if is_main():
        try:
            found[0] = call()
            pickle.dumps(found[0])
        except Exception as error:
            found = [None, _portable(error)]
    dist.broadcast_object_list(found, src=0)
    if found[1] is not None:
        raise found[1]
    return found[0]


def _portable(error: Exception) -> Exception:
    """The error, or one with its text where it cannot be sent to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return LabError(f"{type(error).__name__}: {error}")
    return error


def wait() -> None:
    """Until all processes are here."""
    if world() > 1:
        any_of(False)
