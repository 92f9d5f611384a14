"""Check before a run that its predictor of opinion scores is installed."""

from __future__ import annotations

from importlib.util import find_spec

from rlhf_lab.config import registry
from rlhf_lab.config.root import Config
from rlhf_lab.core.errors import OPTIONAL, MissingDependency
from rlhf_lab.packs.speech.rewards.settings import DNSMOS, DNSMOS_LIBRARIES


def problems(config: Config) -> list[str]:
    """Return how to install DNSMOS if the stage predicts opinion scores with it and it is missing."""
    terms = config.reward.terms.values() if "reward" in config.algorithm.inputs.sections else ()
    kinds = {registry.kind_of("reward", term) for term in terms}
    is_needed = DNSMOS in kinds or getattr(config.algorithm, "mos", "") == DNSMOS
    if not is_needed or all(find_spec(library) for library in DNSMOS_LIBRARIES):
        return []
    return [str(MissingDependency(*OPTIONAL["speechmos"]))]
