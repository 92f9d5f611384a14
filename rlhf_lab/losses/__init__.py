"""Losses, advantages and KL estimates: pure functions on tensors, one value per pair or token, each with its source.

Read preference.py and policy.py first; objective.py is the table from a name to a loss and what it needs. No config,
no model and no hidden mean: a loss can be read and tested on its own.
"""
