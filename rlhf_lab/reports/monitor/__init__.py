"""Sections about signs of reward hacking.

Read lights.py (the signs in the last policy against the first), then panels.py (the monitor during training)
and audited.py (comparisons with the start policy during training).
"""
