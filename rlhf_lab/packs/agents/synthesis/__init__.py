"""Training data made of attempts in an environment.

Read settings.py, then trajectories.py and attempt_pairs.py.
"""
