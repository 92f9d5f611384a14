"""Transfer of host values to a device."""

from __future__ import annotations

from typing import Any

import torch


def to_device(values: Any, device: torch.device | str, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Copy a host tensor, or values that make one, to a device without waiting for the device.

    `torch.tensor(values, device=…)` and `.to(device)` block until the device has finished all queued work. With
    non_blocking=True CUDA first copies pageable host memory to a staging buffer, so `values` may change afterwards.
    """
    return torch.as_tensor(values, dtype=dtype).to(device, non_blocking=True)
