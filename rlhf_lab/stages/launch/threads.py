"""Number of CPU threads of a process of a run."""

from __future__ import annotations

import torch

from rlhf_lab.config import registry, root
from rlhf_lab.core.machine import usable_cores


def set_threads(checked: root.Config, processes: int) -> None:
    """Set this process's CPU threads: `runtime.threads`, or the cores divided by `processes`."""
    if checked.runtime.threads:
        threads = checked.runtime.threads
    elif registry.kind_of("model", checked.model) == "scratch":
        threads = 1  # a small model is slower with two; see `runtime.threads`
    else:
        threads = max(1, usable_cores() // processes)
    torch.set_num_threads(threads)
