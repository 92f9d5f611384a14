"""Stages that train. A folder per family, settings beside the code.

supervised/ (SFT), preference/ (DPO and its relatives, iterated), policy_gradient/ (PPO, GRPO), reward_models/,
pair_selection/ (which pairs to train on), trl/ (the same recipes through TRL). Start at preference/dpo.py.
"""
