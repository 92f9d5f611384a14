"""Rewards from trained models: Bradley-Terry, rubric, process and outcome models, follow-up likelihood.

Read settings.py, then a term. The function `build` in the module of its name creates it: bt.py with ensemble.py,
rubric.py, process.py, flr.py.
"""
