"""Which pairs of a corpus a stage trains on.

Read settings.py, rules.py (what each way keeps, pure), selection.py (applied to a corpus), crossfit.py (margins from
models that have not seen the pair), margins.py (their file).
"""
