"""Rewards from trained models: Bradley-Terry, rubric, process and outcome models, follow-up likelihood.

Read settings.py, then a term: bt.py with ensemble.py, rubric.py, process.py, flr.py. The function `build` in a term's
module creates the term.
"""
