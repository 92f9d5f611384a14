"""Check before a run that the environment of Parler-TTS is ready."""

from __future__ import annotations

from rlhf_lab.config.root import Config
from rlhf_lab.core.pinned_packages import EnvironmentMissing
from rlhf_lab.packs.speech.parler.environment import PARLER
from rlhf_lab.packs.speech.parler.settings import ParlerTTS


def problems(config: Config) -> list[str]:
    """Return how to create the environment of Parler-TTS if the stage needs it and it is not ready."""
    if "model" not in config.algorithm.inputs.sections or not isinstance(config.model, ParlerTTS):
        return []
    try:
        PARLER.ready()
    except EnvironmentMissing as error:
        return [f"model=parler: {error}"]
    return []
