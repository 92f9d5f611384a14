"""How many CPU threads a process of a run takes."""

from __future__ import annotations

import torch

from rlhf_lab.config import registry, root
from rlhf_lab.core.machine import usable_cores


def set_threads(checked: root.Config, processes: int) -> None:
    """Set this process's CPU threads: `runtime.threads`, or its share of the cores among `processes`."""
    if checked.runtime.threads:
        threads = checked.runtime.threads
    elif registry.kind_of("model", checked.model) == "scratch":
        threads = 1  # a second thread slows a small model down; see `runtime.threads`
    else:
        threads = max(1, usable_cores() // processes)
    torch.set_num_threads(threads)
