"""Settings class of the stage that wrote a run directory; reports read from it the properties of such runs."""

from __future__ import annotations

from rlhf_lab.config import registry
from rlhf_lab.results.rundir import StoredRun
from rlhf_lab.training.settings import StageSettings


def algorithm_settings(kind: str) -> type[StageSettings]:
    """Return the settings class of an algorithm; the base class if its plug-in is no longer installed."""
    if kind in registry.kinds("algorithm"):
        return registry.settings_class("algorithm", kind)
    return StageSettings


def stage_settings(run: StoredRun) -> type[StageSettings]:
    """Return the settings class of the algorithm of a run."""
    return algorithm_settings(str((run.settings.get("algorithm") or {}).get("kind", "")))
