"""Rewards without a model: the world's truth, verifiers, programs.

settings.py has the settings of each; a term is built by `build` of the module with its name.
"""
