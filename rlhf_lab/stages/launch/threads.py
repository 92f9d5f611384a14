"""How many CPU threads a process of a run takes."""

from __future__ import annotations

import torch

from rlhf_lab.config import registry, root
from rlhf_lab.core.machine import usable_cores


def set_threads(checked: root.Config, processes: int) -> None:
    """`runtime.threads`, or this process's part of the cores that `processes` share."""
    small = registry.kind_of("model", checked.model) == "scratch"  # a second thread costs it more than it gives
    torch.set_num_threads(checked.runtime.threads or (1 if small else max(1, usable_cores() // processes)))
