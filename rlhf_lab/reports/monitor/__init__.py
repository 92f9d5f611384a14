"""Sections about reward hacking: held-out signs (lights.py), what the monitor saw during training (panels.py)."""
