"""One process on one device."""

from __future__ import annotations

from rlhf_lab.sharding.engine import Engine
from rlhf_lab.sharding.settings import Single
from rlhf_lab.train.loop import Algorithm
from rlhf_lab.train.run import Run


def build(settings: Single, algorithm: Algorithm, run: Run) -> Engine:
    return Engine(settings, algorithm, run)
