"""Sections about signs of reward hacking.

Read panels.py (signs in the last policy against the first, and the monitor during training) and audited.py
(comparisons with the start policy during training).
"""
