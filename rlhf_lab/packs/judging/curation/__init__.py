"""Selection of the rows to train on: no duplicates, no evaluation items, no unusable responses.

Read settings.py, then curate.py. Train on the corpus that it writes with `needs.corpus=curate`.
"""
