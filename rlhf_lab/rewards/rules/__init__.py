"""Rewards without a model: the true reward of synthetic data or environments, the answer key, rules on the text.

Read settings.py, then a term, e.g. length.py. The function `build` in a term's module creates the term.
"""
