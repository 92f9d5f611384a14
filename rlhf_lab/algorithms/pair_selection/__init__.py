"""Selection of the pairs of a corpus that a stage trains on.

Read settings.py, rules.py (pure functions: which pairs each rule selects) and selection.py (the rule applied to a
corpus). crossfit.py computes margins from reward models that have not seen the pair; margins.py reads and writes
them.
"""
