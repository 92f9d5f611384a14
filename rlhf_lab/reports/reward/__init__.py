"""Sections about rewards.

Begin with card.py: the report card of a reward; parts.py shows what a reward is made of.
"""
