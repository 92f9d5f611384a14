"""Sections about speech.

Begin with parts.py: what a reward of speech is made of.
"""
