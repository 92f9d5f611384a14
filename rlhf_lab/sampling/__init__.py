"""Replies of a policy: the sampler, and the data that are sampled with it.

Read local.py (groups of replies per prompt, exact log-probabilities), decoder.py (the bare decoder behind it),
experience.py (samples as training data). policy_replies.py and solutions.py sample what reward models train on.
"""
