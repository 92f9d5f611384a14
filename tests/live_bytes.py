"""Counts the bytes of live tensor storages on the CPU, with their peak, as the CUDA allocator does on a GPU."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Within the block, every storage that an operation returns counts until it is freed, at the size it has.

    Blind to memory inside one operation, and to storages that existed before and are not named in `known`.

    Attributes:
        live, peak: bytes.
    """

    def __init__(self, known: Iterable[Tensor] = ()):
        super().__init__()
        self.live = self.peak = 0
        self._seen: dict[int, weakref.ref[Any]] = {}
        self._size: dict[int, int] = {}
        for tensor in known:
            self._add(tensor)

    def __enter__(self) -> LiveBytes:
        self._resize = resize = torch.UntypedStorage.resize_

        def resized(storage: Any, size: int) -> Any:  # no operation: FSDP2's way to free and to take memory
            out = resize(storage, size)
            if storage._cdata in self._seen:
                self._count(storage._cdata, size)
            return out

        torch.UntypedStorage.resize_ = resized  # type: ignore[method-assign, assignment]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._add(leaf)
        return out

    def restart(self) -> None:
        """Count the peak anew."""
        self.peak = self.live

    def _add(self, tensor: Tensor) -> None:
        try:
            storage = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).untyped_storage()
        except NotImplementedError:  # packed weights of oneDNN have no storage
            return
        key = storage._cdata
        if key in self._seen or storage.device.type == "meta":
            return

        def freed(_: Any) -> None:
            self._seen.pop(key, None)
            self._count(key, 0)

        self._seen[key] = weakref.ref(storage, freed)
        self._count(key, storage.nbytes())

    def _count(self, key: int, size: int) -> None:
        self.live += size - self._size.get(key, 0)
        self._size[key] = size
        self.peak = max(self.peak, self.live)
