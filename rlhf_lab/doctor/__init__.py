"""`doctor`: checks of the machine, and of the invariants of training on the user's own model.

examination.py runs everything; findings.py says what a check is; subject.py is the model under examination.
"""
