"""Losses, advantages and KL estimates: pure functions on tensors, one value per pair or token.

Read preference.py and policy.py first. A loss depends on no config and no model and has no state, so it can be read and
tested alone. Each function cites its source.
"""
