"""Rewards without a model: the true reward of a world or environment, the answer key, rules on the text.

Read settings.py, then a term, e.g. length.py. The function `build` in the module of its name creates it.
"""
