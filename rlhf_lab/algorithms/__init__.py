"""Training stages, one sub-package per family, each with its settings.

supervised/ is SFT. preference/ is DPO and related methods, on pairs or in rounds. policy_gradient/ is PPO and the GRPO
family. reward_models/ trains rewards, pair_selection/ selects training pairs, and trl/ runs the same recipes through
TRL's trainers. Start with preference/dpo.py. All stages use the training loop in `training/`.
"""
