"""Counts the bytes of live tensor storages on the CPU, with their peak, as the CUDA allocator does on a GPU."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Within the block, every storage that an operation returns counts until it is freed.

    Blind to memory inside one operation, and to storages that existed before and are not named in `known`.

    Attributes:
        live, peak: bytes.
    """

    def __init__(self, known: Iterable[Tensor] = ()):
        super().__init__()
        self.live = self.peak = 0
        self._seen: dict[int, weakref.ref[Any]] = {}
        for tensor in known:
            self._add(tensor)

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
            storage = tensor.untyped_storage()
        except NotImplementedError:  # packed weights of oneDNN have no storage
            return
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return

        def freed(_: Any) -> None:
            self._seen.pop(key, None)
            self.live -= size

        self._seen[key] = weakref.ref(storage, freed)
        self.live += size
        self.peak = max(self.peak, self.live)
