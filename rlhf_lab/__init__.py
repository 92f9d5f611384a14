"""rlhf_lab: a laboratory for reward signals and post-training of language models. Start reading at `main.py`.

From Python: `run` runs a recipe, `load_reward` opens a saved reward model. The other names are for plug-ins that add
rewards, algorithms, data sources or environments (CONTRIBUTING.md). Modules are imported on first use, so importing the
package takes milliseconds. docs/code.md has a map of the packages.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlhf_lab.config.registry import register as register
    from rlhf_lab.config.section import Section as Section
    from rlhf_lab.config.section import section as section
    from rlhf_lab.core.capabilities import Capability as Capability
    from rlhf_lab.core.episodes import Environment as Environment
    from rlhf_lab.core.episodes import Episode as Episode
    from rlhf_lab.core.episodes import Step as Step
    from rlhf_lab.core.episodes import Task as Task
    from rlhf_lab.core.measures import Measure as Measure
    from rlhf_lab.core.packs import Pack as Pack
    from rlhf_lab.core.types import Corpus as Corpus
    from rlhf_lab.core.types import Pair as Pair
    from rlhf_lab.core.types import RewardBatch as RewardBatch
    from rlhf_lab.data.file_settings import FileSettings as FileSettings
    from rlhf_lab.data.settings import DataSettings as DataSettings
    from rlhf_lab.data.settings import WorldSettings as WorldSettings
    from rlhf_lab.notebook import run as run
    from rlhf_lab.rewards.saved import load_reward as load_reward
    from rlhf_lab.rewards.term import TermSettings as TermSettings
    from rlhf_lab.training.loop import Algorithm as Algorithm
    from rlhf_lab.training.loop import StepBatch as StepBatch
    from rlhf_lab.training.run import Result as Result
    from rlhf_lab.training.run import Run as Run
    from rlhf_lab.training.settings import TrainingSettings as TrainingSettings
    from rlhf_lab.training.totals import LossOutput as LossOutput

__version__ = "0.17.0"

EXPORTS = {
    "run": "rlhf_lab.notebook",
    "load_reward": "rlhf_lab.rewards.saved",
    "register": "rlhf_lab.config.registry",
    "Capability": "rlhf_lab.core.capabilities",
    "Pack": "rlhf_lab.core.packs",
    "Section": "rlhf_lab.config.section",
    "section": "rlhf_lab.config.section",
    # rewards
    "TermSettings": "rlhf_lab.rewards.term",
    "RewardBatch": "rlhf_lab.core.types",
    # data sources and worlds
    "DataSettings": "rlhf_lab.data.settings",
    "FileSettings": "rlhf_lab.data.file_settings",
    "WorldSettings": "rlhf_lab.data.settings",
    "Corpus": "rlhf_lab.core.types",
    "Measure": "rlhf_lab.core.measures",
    "Pair": "rlhf_lab.core.types",
    # environments
    "Environment": "rlhf_lab.core.episodes",
    "Episode": "rlhf_lab.core.episodes",
    "Step": "rlhf_lab.core.episodes",
    "Task": "rlhf_lab.core.episodes",
    # algorithms
    "TrainingSettings": "rlhf_lab.training.settings",
    "Algorithm": "rlhf_lab.training.loop",
    "StepBatch": "rlhf_lab.training.loop",
    "LossOutput": "rlhf_lab.training.totals",
    "Run": "rlhf_lab.training.run",
    "Result": "rlhf_lab.training.run",
}
"""Exported name → module that defines it."""


def __getattr__(name: str) -> Any:
    """Import an exported name on first use (PEP 562)."""
    if name in EXPORTS:
        return getattr(import_module(EXPORTS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
