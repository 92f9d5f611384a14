"""Checks before a run of what only the machine can reveal: DNSMOS and the environment of Parler-TTS."""

from __future__ import annotations

from importlib.util import find_spec

from rlhf_lab.config import registry
from rlhf_lab.config.root import Config
from rlhf_lab.core.errors import OPTIONAL, MissingDependency
from rlhf_lab.core.pinned_packages import EnvironmentMissing
from rlhf_lab.packs.speech.parler.environment import PARLER
from rlhf_lab.packs.speech.parler.settings import ParlerTTS
from rlhf_lab.packs.speech.rewards.settings import DNSMOS, DNSMOS_LIBRARIES


def problems(config: Config) -> list[str]:
    """Return how to create the environment of Parler-TTS, and how to install DNSMOS, if the stage needs them."""
    return [*_parler_problems(config), *_dnsmos_problems(config)]


def _parler_problems(config: Config) -> list[str]:
    if "model" not in config.algorithm.inputs.sections or not isinstance(config.model, ParlerTTS):
        return []
    try:
        PARLER.ready()
    except EnvironmentMissing as error:
        return [f"model=parler: {error}"]
    return []


def _dnsmos_problems(config: Config) -> list[str]:
    terms = config.reward.terms.values() if "reward" in config.algorithm.inputs.sections else ()
    kinds = {registry.kind_of("reward", term) for term in terms}
    is_needed = DNSMOS in kinds or getattr(config.algorithm, "mos", "") == DNSMOS
    if not is_needed or all(find_spec(library) for library in DNSMOS_LIBRARIES):
        return []
    return [str(MissingDependency(*OPTIONAL["speechmos"]))]
