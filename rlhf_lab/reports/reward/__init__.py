"""Sections about rewards.

Read card.py (the report card of a reward), then parts.py (figures of the components of a reward).
"""
