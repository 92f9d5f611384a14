"""Stages that turn attempts into training data.

Read settings.py, then trajectories.py (conversations for supervised training). teacher_trajectories.py has those of an
agent with any language model, reward_trajectories.py those that a reward selects, attempt_pairs.py preference pairs.
"""
