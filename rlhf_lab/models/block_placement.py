"""Devices of the blocks of a frozen model under `model.dispatch`: GPUs first, then host memory, then disk.

A pure function of sizes, used by the loader (`models/dispatch.py`) and by the memory plan. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.machine import GIB
from rlhf_lab.models.settings import Dispatch

Place = int | str
"""Place of a block: the index of a GPU, `cpu` or `disk`."""


@dataclass(frozen=True)
class BlockPlacement:
    """Places of a model's weights.

    Attributes:
        first: device on which the model computes and which holds the parts outside the blocks.
        places: place of each block, in the order in which they compute.
        bytes_at: place → bytes of weights there.
    """

    first: Place
    places: tuple[Place, ...]
    bytes_at: dict[Place, int]

    @property
    def moves_blocks(self) -> bool:
        """True if some blocks are moved to a device for each pass."""
        elsewhere = [place for place in self.places if not isinstance(place, int)]  # host memory or disk
        return any(place != self.first for place in elsewhere)


def place_blocks(
    root_bytes: int, block_bytes: Sequence[int], limits: Dispatch, *, cuda: bool, first_gpu: int = 0
) -> BlockPlacement:
    """Return the places of a model's blocks, filled in order; a place is not used again once a block did not fit.

    Raises ConfigError if the parts outside the blocks exceed the limit of the first device.

    Args:
        root_bytes: bytes outside the blocks (embeddings, last norm, head), which stay on the first device.
        block_bytes: bytes of each block, in order.
        cuda: False for a machine without GPUs, where host memory is the first device.
        first_gpu: index of the process's own GPU. Further GPUs follow it.
    """
    host_limit = None if limits.host_gib is None else int(limits.host_gib * GIB)
    gpu_limit = None if limits.gpu_gib is None else int(limits.gpu_gib * GIB)
    remaining: list[tuple[Place, int | None]] = []  # places with their limits, in the order in which they are filled
    if cuda:
        remaining += [(first_gpu + index, gpu_limit) for index in range(limits.gpus)]
    remaining.append(("cpu", host_limit))
    first, first_limit = remaining[0]
    if first_limit is not None and root_bytes > first_limit:
        name = "gpu_gib" if cuda else "host_gib"
        raise ConfigError(
            f"dispatch.{name}={first_limit / GIB:.3g}: the parts of the model outside its blocks need "
            f"{root_bytes / GIB:.3g} GiB on the first device; raise the limit"
        )
    bytes_at: dict[Place, int] = {first: root_bytes}
    places: list[Place] = []
    for size in block_bytes:
        while remaining:
            place, limit = remaining[0]
            if limit is None or bytes_at.get(place, 0) + size <= limit:
                break
            # not used again, even if a later block is smaller: successive blocks stay on one device
            remaining.pop(0)
        place = remaining[0][0] if remaining else "disk"
        places.append(place)
        bytes_at[place] = bytes_at.get(place, 0) + size
    return BlockPlacement(first, tuple(places), bytes_at)
