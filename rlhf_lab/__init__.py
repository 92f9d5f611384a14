"""rlhf_lab: a laboratory for reward signals and post-training of language models. Start reading at `main.py`.

From Python: `run` runs a recipe, `load_reward` opens a saved reward model. A plug-in needs `register` and, for a
reward, `TermSettings` and `RewardBatch`. Nothing is imported before it is asked for: importing the package costs
milliseconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlhf_lab.config.registry import register as register
    from rlhf_lab.core.types import RewardBatch as RewardBatch
    from rlhf_lab.notebook import run as run
    from rlhf_lab.rewards.saved import load_reward as load_reward
    from rlhf_lab.rewards.term import TermSettings as TermSettings

__version__ = "0.6.0"

EXPORTS = {
    "run": "rlhf_lab.notebook",
    "load_reward": "rlhf_lab.rewards.saved",
    "register": "rlhf_lab.config.registry",
    "TermSettings": "rlhf_lab.rewards.term",
    "RewardBatch": "rlhf_lab.core.types",
}
"""Name → the module that has it."""


def __getattr__(name: str) -> Any:
    if name in EXPORTS:
        return getattr(import_module(EXPORTS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
