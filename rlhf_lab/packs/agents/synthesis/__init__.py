"""Stages that turn attempts into training data.

Read settings.py, then trajectories.py (conversations for supervised training) and attempt_pairs.py (preference pairs).
"""
