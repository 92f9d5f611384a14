"""The files that the monitor of a run writes, and the limits that a run is judged by. Imports no torch."""

from __future__ import annotations

from rlhf_lab.monitoring.detector import Limits
from rlhf_lab.monitoring.settings import Monitor

TRACE = "monitor.jsonl"
LIMITS_FILE = "monitor.json"


def limits(settings: Monitor, iterations: int, every: int, warmup: int, seed: int) -> Limits:
    """The detector's limits for a run of so many iterations; `every` and `warmup` go before those of the settings."""
    return Limits(
        every=every,
        warmup=warmup,
        planned=iterations // every,
        z=settings.z,
        kl=settings.kl,
        rising=settings.rising,
        budget=settings.budget,
        tolerance=settings.tolerance,
        signals=settings.signals,
        needed=settings.needed,
        seed=seed,
    )
