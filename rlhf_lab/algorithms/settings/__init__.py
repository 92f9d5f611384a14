"""Settings of every algorithm (`algorithm=…`). Imports no torch; see `rlhf_lab/registry.py`."""

from rlhf_lab.algorithms.settings.evaluation import BestOfN, Compare, EvaluationSettings
from rlhf_lab.algorithms.settings.policy import GRPO, PPO, OnPolicySettings
from rlhf_lab.algorithms.settings.preference import DPO, IterativeDPO, PreferenceSettings
from rlhf_lab.algorithms.settings.supervised import SFT, RewardModel

__all__ = [
    "DPO",
    "GRPO",
    "PPO",
    "SFT",
    "BestOfN",
    "Compare",
    "EvaluationSettings",
    "IterativeDPO",
    "OnPolicySettings",
    "PreferenceSettings",
    "RewardModel",
]
