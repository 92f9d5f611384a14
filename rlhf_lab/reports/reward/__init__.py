"""Sections about rewards: card.py."""
