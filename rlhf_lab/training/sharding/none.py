"""One process on one device."""

from __future__ import annotations

from rlhf_lab.training.loop import Algorithm
from rlhf_lab.training.run import Run
from rlhf_lab.training.sharding.engine import Engine
from rlhf_lab.training.sharding.settings import Single


def build(settings: Single, algorithm: Algorithm, run: Run) -> Engine:
    return Engine(settings, algorithm, run)
