"""Rewards without a model: the world's truth, verifiers, programs.

settings.py says what each can set; `build` of the module with the name of the term makes it.
"""
