"""Sections about signs of reward hacking.

Read panels.py: signs in the last policy against the first, the monitor during training, and audited training.
"""
