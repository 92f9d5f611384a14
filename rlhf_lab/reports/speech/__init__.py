"""Sections about speech: what a reward of speech is made of (parts.py)."""
