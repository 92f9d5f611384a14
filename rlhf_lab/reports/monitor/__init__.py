"""Sections about signs of reward hacking.

Begin with lights.py: the signs of reward hacking at a glance; panels.py shows the monitor during training.
"""
