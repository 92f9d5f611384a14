"""A GPU of which there is none: its tensors say that they are on a device of their own, and are computed on the CPU.

    python tests/simulated_gpu.py +recipe=grpo model=micro outputs=/tmp/simulated

runs a command of the lab on it. What a GPU refuses first is refused: operations on tensors of which some are on the
CPU, GPU indices into a CPU tensor, NumPy's view of a GPU tensor; generators are not looked at. Each time the host waits
for the device is counted, with the line of rlhf_lab that waited: reading a number, copying to or from the host,
shapes that depend on values.

The device is registered as PyTorch's `PrivateUse1`, under a name that begins with "cuda", by which the lab knows a GPU.
A tensor on it is a `GpuTensor` around the tensor on the host. Attention takes PyTorch's math path, and the allocator,
streams and several devices are not simulated: it says nothing of speed and memory.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_flatten, tree_map, tree_map_only
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

aten = torch.ops.aten
NAME = "cudasim"
GPU = torch.device("privateuseone", 0)  # renamed by `install`
PACKAGE = str(Path(__file__).resolve().parents[1] / "rlhf_lab")


Wait = tuple[str, str]
"""Cause of a wait of the host, and the line of rlhf_lab that waited."""
waits: Counter[Wait] = Counter()
waits_in_gradients: Counter[Wait] = Counter()
"""Waits within the forward and backward passes of a training step."""


def is_gpu(device: Any) -> bool:
    return device is not None and torch.device(device).type == GPU.type


class GpuTensor(torch.Tensor):
    """A tensor on the device; `host` holds its numbers."""

    host: torch.Tensor

    @staticmethod
    def __new__(cls, host: torch.Tensor) -> GpuTensor:
        tensor: GpuTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, host.shape, strides=host.stride(), dtype=host.dtype, device=GPU
        )
        tensor.host = host
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})

    # Two methods by which `Module.to` recognises a tensor that it has to swap, and not to overwrite.
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["host"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], _: None, size: Any, stride: Any) -> GpuTensor:
        return GpuTensor(inner["host"])

    # What PyTorch does in C++ without asking `__torch_dispatch__`.
    def tolist(self) -> Any:
        count_wait("tolist")
        return self.host.tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"can't convert {GPU} device type tensor to numpy. Use Tensor.cpu() first")

    __array__ = numpy

    def new_tensor(self, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Any:
        generated = torch.tensor(data, dtype=dtype or self.dtype, device=device or GPU)
        return generated.requires_grad_(requires_grad)

    def storage(self) -> Any:
        return self.host.storage()

    def untyped_storage(self) -> Any:
        return self.host.untyped_storage()

    def data_ptr(self) -> int:
        return self.host.data_ptr()

    def __contains__(self, element: Any) -> bool:
        return bool((self == element).any())

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, tuple):
            index = tuple(torch.tensor(part) if isinstance(part, list) else part for part in index)
        return super().__getitem__(torch.tensor(index) if isinstance(index, list) else index)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = GpuTensor(self.host.detach().clone()).requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, requires_grad=self.requires_grad)
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        count_wait("pickle")
        return self.host.detach().__reduce_ex__(protocol)

    def __repr__(self, **kwargs: Any) -> str:
        return f"GpuTensor({self.host!r})"


def count_wait(what: str) -> None:
    """Note that the host waits for the device, and where."""
    frames = [frame for frame in traceback.extract_stack() if frame.filename.startswith(PACKAGE)]
    line = f"{frames[-1].filename.removeprefix(PACKAGE + '/')}:{frames[-1].lineno}" if frames else "?"
    waits[what, line] += 1
    if any(frame.name == "_accumulate_gradients" for frame in frames):
        waits_in_gradients[what, line] += 1


COPIES = {aten.copy_.default, aten.copy.default, aten._to_copy.default}
INDEXED = {
    *(aten.index.Tensor, aten._unsafe_index.Tensor),
    *(aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default),
}
SHAPED_BY_VALUES = {
    *(aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default),
    *(aten._unique2.default, aten.unique_consecutive.default, aten.bincount.default),
    aten.repeat_interleave.Tensor,
}
"""Operations whose result, or its shape, the host has to know."""
UNWRITTEN = {
    *(aten.empty.memory_format, aten.empty_strided.default, aten.empty_like.default),
    *(aten.new_empty.default, aten.new_empty_strided.default),
}
"""Operations whose result may hold anything: it holds NaN."""
PLAIN_ATTENTION = 0


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation's result: computed on the host, and on the device where it would be."""
    if func is aten._fused_sdp_choice.default:
        return PLAIN_ATTENTION
    leaves, _ = tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    on_gpu = [isinstance(tensor, GpuTensor) for tensor in tensors]
    _refuse_mixed(func, tensors)
    _count_waits_of(func, args, kwargs, tensors)
    device = kwargs.get("device")
    goes_to_gpu = any(on_gpu) if device is None else is_gpu(device)
    host_args, host_kwargs = tree_map_only(GpuTensor, lambda tensor: tensor.host, (args, kwargs))
    if is_gpu(host_kwargs.get("device")):
        host_kwargs["device"] = torch.device("cpu")
    result = func(*host_args, **host_kwargs)
    if not goes_to_gpu:
        return result
    if func in UNWRITTEN and result.is_floating_point():
        result.fill_(torch.nan)
    given = {id(tensor.host): tensor for tensor in tensors if isinstance(tensor, GpuTensor)}  # changed in place

    def on_device(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return given[id(value)] if id(value) in given else GpuTensor(value)

    return tree_map(on_device, result)


def _refuse_mixed(func: Any, tensors: list[torch.Tensor]) -> None:
    """Raise what a GPU raises for tensors on two devices; numbers and indices may come from the host."""
    on_gpu = [isinstance(tensor, GpuTensor) for tensor in tensors]
    if not any(on_gpu) or all(on_gpu) or func in COPIES:
        return
    if func in INDEXED and on_gpu[0] and ("put" not in func.__name__ or on_gpu[-1] or not tensors[-1].dim()):
        return
    if func in INDEXED or any(tensor.dim() for tensor in tensors if not isinstance(tensor, GpuTensor)):
        positions = ", ".join("GPU" if there else "CPU" for there in on_gpu)
        raise RuntimeError(f"Expected all tensors to be on the same device: {func} of tensors on {positions}")


def _count_waits_of(func: Any, args: Any, kwargs: dict[str, Any], tensors: list[torch.Tensor]) -> None:
    on_gpu = [isinstance(tensor, GpuTensor) for tensor in tensors]
    if not any(on_gpu):
        return
    if func in SHAPED_BY_VALUES:
        count_wait(func.__name__)
    elif func is aten.index.Tensor and any(i is not None and i.dtype == torch.bool for i in args[1]):
        count_wait("a boolean index")
    elif func in INDEXED and not all(on_gpu):
        count_wait("an index on the host")
    elif func is aten._to_copy.default and not is_gpu(kwargs.get("device", GPU)):
        count_wait("a copy to the host")
    elif func in COPIES and not all(on_gpu) and tensors[0].numel():
        may_wait = kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
        if not (on_gpu[0] and may_wait):  # copies from ordinary host memory finish before the call returns
            count_wait("a copy" if on_gpu[0] else "a copy to the host")


class _Module(_DummyBackendModule):
    """Functions that PyTorch requires of a device's module."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        pass

    @contextmanager
    def device(self, device: Any = None) -> Iterator[None]:
        yield


AUTOCAST = ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "scaled_dot_product_attention")


def _under_autocast(op: Any) -> Callable[..., Any]:
    """An operation whose float32 arguments autocast rounds."""
    key = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype(NAME)
        with torch._C._ExcludeDispatchKeyGuard(key):
            rounded = tree_map_only(
                torch.Tensor,
                lambda tensor: tensor.to(dtype) if tensor.dtype == torch.float32 else tensor,
                (args, kwargs),
            )
            return op(*rounded[0], **rounded[1])

    return kernel


def _factories() -> Iterator[tuple[str, Any]]:
    """Operations that make a tensor on a device out of no other one."""
    for name in torch._C._dispatch_get_all_op_names():
        base, _, overload = name.removeprefix("aten::").partition(".")
        if not name.startswith("aten::") or not hasattr(aten, base):
            continue
        op = getattr(getattr(aten, base), overload or "default", None)
        if op is None or torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"):
            continue
        arguments = op._schema.arguments
        if any(argument.name == "device" for argument in arguments) and not any(
            "Tensor" in str(argument.type) for argument in arguments
        ):
            yield name.removeprefix("aten::"), op


def _made_on_host_first(make: Any) -> Any:
    """`torch.tensor` for the device: it makes its copy without asking `__torch_dispatch__`."""

    def generated(data: Any, *args: Any, device: Any = None, requires_grad: bool = False, **kwargs: Any) -> Any:
        tensor = make(data, *args, **({} if is_gpu(device) else {"device": device}), **kwargs)
        if is_gpu(device):
            tensor = tensor.to(device)
        return tensor.requires_grad_() if requires_grad else tensor

    return generated


def install() -> list[torch.library.Library]:
    """Register the device, and let the lab take it for the one of this machine. The libraries are to be kept."""
    _setup_privateuseone_for_python_backend(NAME, _Module())
    backend = torch.library.Library("_", "IMPL")
    backend.fallback(lambda op, *args, **kwargs: compute(op, args, kwargs), "PrivateUse1")
    backend.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    library = torch.library.Library("aten", "IMPL")
    for name, op in _factories():
        library.impl(name, lambda *args, op=op, **kwargs: compute(op, args, kwargs), "PrivateUse1")
    for name in AUTOCAST:
        library.impl(name, _under_autocast(getattr(aten, name).default), "AutocastPrivateUse1")
    _device_constructors()  # remembers the functions that `with torch.device(…)` knows, before two are replaced
    torch.tensor, torch.as_tensor = _made_on_host_first(torch.tensor), _made_on_host_first(torch.as_tensor)

    from rlhf_lab.core import ranks

    ranks.device = lambda wanted: "cpu" if wanted == "cpu" else NAME
    return [backend, library]


if __name__ == "__main__":
    kept = install()
    from rlhf_lab.main import main

    try:
        main()
    finally:
        print("waits for the device")
        for (what, line), count in waits.most_common():
            print(
                f"{count:7}  {what:28} {line}{'  (in a training step)' if (what, line) in waits_in_gradients else ''}"
            )
