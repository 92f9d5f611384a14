"""Sections about rewards: report card and benchmark (card.py), what a reward is made of (parts.py)."""
