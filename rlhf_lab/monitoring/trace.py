"""Files that the monitor and the audit of a run write, and limits with which a run is judged. Imports no torch."""

from __future__ import annotations

from rlhf_lab.monitoring.detector import DetectorSettings
from rlhf_lab.monitoring.settings import Monitor

TRACE = "monitor.jsonl"
LIMITS_FILE = "monitor.json"
AUDIT_TRACE = "audit.jsonl"


def limits(settings: Monitor, iterations: int, every: int, warmup: int, seed: int) -> DetectorSettings:
    """Return the detector's limits for a run of `iterations`; `every` and `warmup` override those of the settings."""
    return DetectorSettings(
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
