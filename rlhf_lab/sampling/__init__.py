"""Replies of a policy: the sampler, and the data that are sampled with it.

Read episodes.py (the one way to collect episodes), local.py (groups of replies per prompt, exact log-probabilities),
turns.py (which rows go on with which token), decoder.py (the bare decoder behind them), experience.py (episodes as
training data). policy_replies.py and solutions.py sample what reward models train on.
"""
