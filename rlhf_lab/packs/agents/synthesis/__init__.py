"""Stages that turn attempts into training data.

Read settings.py, then trajectories.py (conversations for supervised training). teacher_trajectories.py makes such
conversations from the attempts of an agent with any language model; reward_trajectories.py from attempts that a reward
selects. attempt_pairs.py makes preference pairs.
"""
