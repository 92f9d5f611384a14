"""Values of the host on a device."""

from __future__ import annotations

from typing import Any

import torch


def to_device(values: Any, device: torch.device | str, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of the host, or values that make one, on a device; the host does not wait for the device.

    `torch.tensor(values, device=…)` and `.to(device)` would have it wait until the device has done all that was asked
    of it before. Ordinary host memory has been read when this returns, so it may change then.
    """
    return torch.as_tensor(values, dtype=dtype).to(device, non_blocking=True)
