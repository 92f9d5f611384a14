"""Selection of the pairs of a corpus that a stage trains on.

Read settings.py and selection.py. crossfit.py computes margins from reward models that have not seen the pair.
"""
