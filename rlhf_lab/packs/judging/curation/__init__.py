"""Which rows of the data are trained on: without duplicates, evaluation items and unusable replies.

Read settings.py, then curate.py. The corpus it writes is trained on with `needs.corpus=curate`.
"""
