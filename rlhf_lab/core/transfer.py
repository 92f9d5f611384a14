"""Values of the host on a device."""

from __future__ import annotations

from typing import Any

import torch


def to_device(values: Any, device: torch.device | str, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of the host, or values that make one, on a device; the host need not wait for the device.

    `torch.tensor(values, device=…)` and `.to(device)` have it wait until the device has done all that was asked of it
    before. Here CUDA may copy ordinary host memory to a buffer of its own first, and has read it when this returns.
    """
    return torch.as_tensor(values, dtype=dtype).to(device, non_blocking=True)
